// @ts-check
// The explorers of bounds and partitions. The server computes; this file only asks and draws.
"use strict";

/**
 * A slider with a field for the exact value. The field decides; the slider moves on a logarithmic or linear scale.
 * @param {{key: string, text: string, low: number, high: number, value: number, whole?: boolean, log?: boolean}} options
 * @param {() => void} change
 */
function slider(options, change) {
  const { key, low, high, whole } = options, log = options.log !== false;
  const toValue = (/** @type {number} */ share) => {
    const value = log ? low * Math.pow(high / low, share) : low + (high - low) * share;
    return whole ? Math.round(value) : Number(value.toPrecision(3));
  };
  const toShare = (/** @type {number} */ value) => (log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low));
  const range = /** @type {HTMLInputElement} */ (el("input", { type: "range", min: 0, max: 1000, "aria-label": `${key}, slider`, oninput: () => { field.value = String(toValue(Number(range.value) / 1000)); range.setAttribute("aria-valuetext", field.value); change(); } }));
  const field = /** @type {HTMLInputElement} */ (el("input", { type: "number", step: whole ? 1 : "any", min: whole ? 1 : 0, id: `field-${key}`, oninput: () => { place(); change(); } }));
  const place = () => { range.value = String(Math.round(1000 * Math.min(1, Math.max(0, toShare(Number(field.value) || low))))); range.setAttribute("aria-valuetext", field.value); };
  field.value = String(options.value);
  place();
  return { key, field, node: el("div", { class: "slider" }, el("label", { for: `field-${key}` }, el("strong", {}, key), ` ${options.text}`), range, field) };
}

const QUANTITIES = /** @type {any[]} */ ([
  { key: "L", text: "smoothness", low: 0.1, high: 100, value: 2 },
  { key: "mu", text: "strong convexity", low: 0.001, high: 10, value: 1, cases: ["strongly-convex"] },
  { key: "sigma2", text: "variance of gradients (σ²)", low: 0.001, high: 100, value: 1 },
  { key: "zeta2", text: "heterogeneity (ζ²)", low: 0.001, high: 100, value: 4 },
  { key: "B2", text: "growth of heterogeneity (B²)", low: 0.001, high: 10, value: 1, cases: ["non-convex"] },
  { key: "M", text: "clients", low: 1, high: 1000, value: 10, whole: true },
  { key: "S", text: "clients in a round", low: 1, high: 1000, value: 10, whole: true },
  { key: "K", text: "local steps", low: 1, high: 1000, value: 5, whole: true },
  { key: "R", text: "rounds", low: 1, high: 100000, value: 1000, whole: true },
  { key: "D2", text: "squared distance at the start (D²)", low: 0.001, high: 1000, value: 1, cases: ["strongly-convex", "general-convex"] },
  { key: "A", text: "gap at the start", low: 0.001, high: 1000, value: 1, cases: ["non-convex"] },
]);
const CASES = ["strongly-convex", "general-convex", "non-convex"];
const SIDES = /** @type {["ssl" | "fedavg", string][]} */ ([["ssl", "SSL"], ["fedavg", "FedAvg"]]);

class BoundsView {
  constructor() {
    this.case = "strongly-convex";
    this.refresh = latest((signal) => this.load(signal));
    this.node = el("div", { class: "view" });
    this.result = el("div", { id: "bounds", "aria-busy": "false" });
    /** @type {LineChart[]} */ this.charts = [];
    this.sliders = QUANTITIES.map((options) => slider(options, () => this.refresh()));
    this.isBest = /** @type {HTMLInputElement} */ (el("input", { type: "checkbox", checked: true, onchange: () => { this.eta.node.hidden = this.isBest.checked; this.refresh(); } }));
    this.eta = slider({ key: "eta", text: "step of both algorithms", low: 1e-6, high: 1, value: 0.001 }, () => this.refresh());
    this.eta.node.hidden = true;
  }

  async start() {
    const panel = el("form", { onsubmit: (/** @type {Event} */ event) => event.preventDefault() }, choose("Case", CASES.map((name) => [name, name.replace("-", " ")]), this.case, (value) => { this.case = value; this.arrange(); this.refresh(); }),
      ...this.sliders.map((one) => one.node), el("label", {}, this.isBest, " each algorithm with its best step"), this.eta.node);
    this.node.replaceChildren(el("h1", {}, "Bounds of SSL and FedAvg"), el("p", { class: "note" }, "Worst-case bounds of the paper's theorems, computed by splitrelay theory. A smaller bound is a promise, not a prediction."), el("div", { class: "explorer" }, panel, this.result));
    this.arrange();
    await this.load(new AbortController().signal);
  }

  arrange() { this.sliders.forEach((one, j) => { one.node.hidden = QUANTITIES[j].cases && !QUANTITIES[j].cases.includes(this.case); }); }

  query() {
    const shown = this.sliders.filter((one) => !one.node.hidden).map((one) => [one.key, one.field.value]);
    return { case: this.case, ...Object.fromEntries(shown), eta: this.isBest.checked ? "" : this.eta.field.value };
  }

  /** @param {AbortSignal} signal */
  async load(signal) {
    const query = this.query(), began = performance.now();
    this.result.setAttribute("aria-busy", "true");
    try {
      const found = await fetchView("bounds", query, signal);
      this.draw(found, query);
      this.result.dataset.milliseconds = String(performance.now() - began);
    } catch (error) {
      if (!(error instanceof ViewError)) throw error;
      this.stop();
      this.result.replaceChildren(errorBox(error), this.commands(query, ["ssl"]));
    }
    this.result.setAttribute("aria-busy", "false");
  }

  /** @param {Json} query @param {string[]} algorithms */
  commands(query, algorithms) {
    const given = Object.entries(query).filter(([key, value]) => key !== "case" && value !== "" && (key !== "S" || Number(value) < Number(query.M))).map(([key, value]) => `${key}=${value}`).join(" ");
    const kind = query.eta ? "bound" : "stepsize";
    return section("The same numbers in a terminal", ...algorithms.map((name) => command(`splitrelay theory ${kind} ${name} ${query.case} ${given}`)));
  }

  /** @param {Json} found @param {Json} query */
  draw(found, query) {
    this.stop();
    const sides = found.sides, parts = SIDES.map(([key, name]) => [key, name, sides[key]]);
    const terms = [...new Set(parts.flatMap(([, , side]) => (side.at ? Object.keys(side.at.terms) : [])))];
    const cell = (/** @type {string} */ key, /** @type {string} */ name, /** @type {any} */ value) => exact(`${key}.${name}`, value);
    const line = (/** @type {string} */ name, /** @type {(side: Json, key: string) => any} */ get) => [name, ...parts.map(([key, , side]) => (side.error ? "–" : get(side, key)))];
    const rows = [
      line("bound", (side, key) => cell(key, "total", side.at.total)),
      ...terms.map((term) => line(`of which ${term}`, (side, key) => (term in side.at.terms ? cell(key, `terms.${term}`, side.at.terms[term]) : "–"))),
      line("step η", (side, key) => cell(key, "eta", side.at.eta)),
      line("best step", (side, key) => cell(key, "best.eta", side.best.eta)),
      line("bound at the best step", (side, key) => cell(key, "best.total", side.best.total)),
      line("valid steps", (side) => `${num(side.range.low)} to ${num(side.range.high)}`),
      line("applies", (side) => (side.at.applicable ? (side.at.vacuous ? "yes, but it is vacuous" : "yes") : `no: ${side.at.conditions.filter((/** @type {Json} */ one) => !one.holds).map((/** @type {Json} */ one) => one.name).join(", ")}`)),
    ];
    const [first] = parts.filter(([, , side]) => side.at), at = found.crossing.at;
    const crossing = at.length ? at.map((/** @type {Json} */ one) => `From R = ${one.R} on, ${one.smaller === "ssl" ? "SSL" : "FedAvg"} has the smaller bound.`).join(" ") : "The bounds do not cross in this range of R.";
    const errors = parts.filter(([, , side]) => side.error).map(([, name, side]) => errorBox(new Error(`${name}: ${side.error}`)));
    const stacks = parts.filter(([, , side]) => side.curve).map(([key, name, side]) => this.stack(name, side, terms, query.eta ? Number(query.eta) : null));
    const chart = new LineChart({ label: "Best bound by the number of rounds", x: "rounds R", y: "bound", logX: true, logY: true, height: 260 });
    this.charts.push(chart);
    const marks = [...at.map((/** @type {Json} */ one) => ({ x: one.R, text: `crossing at R = ${one.R}` })), { x: Number(query.R), text: `R = ${query.R}` }];
    this.result.replaceChildren(...errors, table("Bounds", ["quantity", "SSL", "FedAvg"], rows, { numeric: [1, 2] }),
      first ? el("p", { class: "note" }, `The bound is on ${first[2].at.measure} (${parts.filter(([, , side]) => side.at).map(([, name, side]) => `${name}: ${side.at.statement}`).join("; ")}; ${first[2].at.constants} constants).`) : "",
      el("p", { id: "crossing" }, crossing), el("div", { class: "charts" }, ...stacks.map((one) => one.node)), chart.node, this.commands(query, found.algorithms));
    for (const one of stacks) one.update(one.lines, one.marks);
    if (found.crossing.R.length) chart.update(SIDES.map(([key, name]) => ({ label: name, x: toNumbers(found.crossing.R), y: toNumbers(found.crossing.totals[key]) })), marks);
    else chart.node.remove();
  }

  /** The terms on top of each other over the step. @param {string} name @param {Json} side @param {string[]} terms @param {number | null} eta */
  stack(name, side, terms, eta) {
    const lines = [], x = toNumbers(side.curve.eta);
    let low = new Float64Array(x.length);
    for (const term of terms.filter((one) => one in side.curve.terms)) {
      const below = low, high = below.map((value, k) => value + (side.curve.terms[term][k] ?? 0));
      lines.push({ label: term, x, y: high, low: below, high, fill: 0.55, colour: terms.indexOf(term) });
      low = high;
    }
    const chart = new LineChart({ label: `${name}: terms of the bound by the step`, x: "step η", y: "bound", logX: true, height: 240, yRange: [0, 6 * side.best.total] });
    chart.lines = lines;
    chart.marks = [{ x: side.best.eta, text: `best ${num(side.best.eta)}` }, ...(eta && eta >= x[0] && eta <= x[x.length - 1] ? [{ x: eta, text: `η = ${num(eta)}` }] : [])];
    this.charts.push(chart);
    return chart;
  }

  stop() {
    for (const chart of this.charts) chart.destroy();
    this.charts = [];
  }
}

class PartitionView {
  constructor() {
    this.kind = "exdir";
    this.form = "paper";
    this.data = "digits";
    this.refresh = latest((signal) => this.load(signal));
    this.node = el("div", { class: "view" });
    this.result = el("div", { id: "partition", "aria-busy": "false" });
    this.sliders = [
      { key: "C", text: "classes of a client", low: 1, high: 10, value: 2, whole: true, log: false },
      { key: "alpha", text: "concentration: smaller is more uneven", low: 0.01, high: 1000, value: 10 },
      { key: "M", text: "clients", low: 1, high: 500, value: 10, whole: true },
      { key: "seed", text: "of the random draw", low: 1, high: 100, value: 1, whole: true, log: false },
    ].map((options) => slider(options, () => this.refresh()));
  }

  async start() {
    const kinds = /** @type {[string, string][]} */ ([["exdir", "ExDir(C, alpha)"], ["dirichlet", "Dirichlet(alpha)"], ["pathological", "C classes a client"], ["iid", "iid"]]);
    const sets = /** @type {[string, string][]} */ (["digits", "mnist", "fashion-mnist", "cifar10"].map((name) => [name, name]));
    const panel = el("form", { onsubmit: (/** @type {Event} */ event) => event.preventDefault() }, el("div", { class: "controls" },
      choose("Data", sets, this.data, (value) => { this.data = value; this.refresh(); }),
      choose("Scheme", kinds, this.kind, (value) => { this.kind = value; this.arrange(); this.refresh(); }),
      choose("Form", [["paper", "paper"], ["balanced", "balanced"]], this.form, (value) => { this.form = value; this.refresh(); })), ...this.sliders.map((one) => one.node));
    this.node.replaceChildren(el("h1", {}, "Partitions"), el("p", { class: "note" }, "How a training set is divided among the clients. Every sample belongs to exactly one client."), el("div", { class: "explorer" }, panel, this.result));
    this.arrange();
    await this.load(new AbortController().signal);
  }

  /** Hide the settings that the scheme does not have. */
  arrange() {
    const used = /** @type {{[kind: string]: string[]}} */ ({ exdir: ["C", "alpha", "M", "seed"], dirichlet: ["alpha", "M", "seed"], pathological: ["C", "M", "seed"], iid: ["M", "seed"] })[this.kind];
    for (const one of this.sliders) one.node.hidden = !used.includes(one.key);
  }

  /** @param {AbortSignal} signal */
  async load(signal) {
    const values = Object.fromEntries(this.sliders.filter((one) => !one.node.hidden).map((one) => [one.key, one.field.value]));
    const query = /** @type {Json} */ ({ data: this.data, kind: this.kind, ...values, ...(this.kind === "exdir" ? { form: this.form } : {}) });
    const text = Object.entries(query).filter(([key]) => key !== "kind").map(([key, value]) => `${key}=${value}`).join(" ");
    const told = section("The same partition in a terminal", command(`splitrelay partition ${this.kind} ${text}`));
    this.result.setAttribute("aria-busy", "true");
    try {
      const found = await fetchView("partition", query, signal);
      this.result.replaceChildren(partitionFigure(found), told);
    } catch (error) {
      if (!(error instanceof ViewError)) throw error;
      this.result.replaceChildren(errorBox(error), told);
    }
    this.result.setAttribute("aria-busy", "false");
  }

  stop() {}
}
