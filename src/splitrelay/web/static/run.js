// @ts-check
// The view Run: state, curves, timeline of visits, classes, forgetting, partition, clients, settings, environment.
"use strict";

/** The picture and the measures of a partition. @param {Json} found */
function partitionFigure(found) {
  const max = Math.max(1, ...found.counts.map((/** @type {number[]} */ row) => Math.max(...row)));
  const main = found.counts.map((/** @type {number[]} */ row) => row.indexOf(Math.max(...row)));
  const order = Array.from(main, (_, m) => m);
  if (found.M > 40) order.sort((a, b) => main[a] - main[b] || a - b);
  const picture = heatMap({ label: `${found.title}: samples of each class at each client`, columns: "client", rows: "class", columnNames: order.map(String), rowNames: found.classes.map(String), values: order.map((m) => found.counts[m]), max, format: (value) => String(value ?? 0), note: `${found.N} samples.${found.M > 40 ? " Clients are sorted by their main class." : ""} A stronger colour means more samples.` });
  const names = /** @type {[string, string][]} */ ([["sizes", "samples per client"], ["classes_per_client", "classes per client"], ["clients_per_class", "clients per class"], ["total_variation", "total variation"], ["earth_movers", "earth mover's (L1)"]]);
  const rows = names.map(([key, text]) => [text, ...["min", "median", "mean", "max", "sd"].map((name) => exact(`${key}.${name}`, found.measures[key][name]))]);
  const empty = found.measures.empty;
  return el("div", {}, picture, table("Measures of heterogeneity", ["measure", "min", "median", "mean", "max", "sd"], rows, { numeric: [1, 2, 3, 4, 5] }),
    el("p", { class: "note" }, "One-class clients: ", exact("one_class_clients", found.measures.one_class_clients), `. Clients without samples: ${empty.length ? empty.slice(0, 10).join(", ") + (empty.length > 10 ? ", ..." : "") : "none"}.`));
}

class RunView {
  /** @param {string} id */
  constructor(id) {
    this.id = id;
    this.node = el("div", { class: "view" });
    /** @type {LineChart[]} */ this.charts = [];
    this.reloadSoon = throttle(() => this.load().catch((error) => this.node.replaceChildren(errorBox(error))), 2000);
  }

  async start() { await this.load(); }

  /** @param {Json} event */
  change(event) { if (event.runs.some((/** @type {Json} */ run) => run.id === this.id)) this.reloadSoon(); }

  async load() {
    const run = await fetchView("run", { id: this.id });
    this.stop();
    const open = new Set([...this.node.querySelectorAll("details[open] > summary")].map((node) => node.textContent));
    this.curves = el("div", { class: "charts" });
    this.visits = el("div", { id: "visits" }, el("p", { class: "note" }, "Computing the order of the clients ..."));
    this.clients = el("div", { id: "clients" });
    const tiles = /** @type {[string, string][]} */ ([["accuracy, mean of the last rounds", percent(run.accuracy)], ["test loss", num(run.loss)], ["round", `${run.round} of ${run.R}`], ["between clients and server", bytes(run.bytes)], ["time", seconds(run.seconds)]]);
    this.node.replaceChildren(el("p", {}, el("a", { href: "#/runs" }, "All runs")), el("h1", {}, el("bdi", {}, run.name)),
      el("p", {}, el("span", { class: `state ${run.state}` }, run.state), " ", el("bdi", {}, run.title), `, seed ${run.seed}, name ${run.hash}`),
      run.why ? el("div", { class: "box bad" }, el("p", {}, el("strong", {}, `Why it is ${run.state}: `), run.why)) : "",
      el("ul", { class: "tiles" }, ...tiles.map(([name, value]) => el("li", {}, el("strong", {}, value), " ", name))),
      section("Curves", this.curves), section("Visits", this.visits), section("Classes", ...this.classes(run)),
      section("Partition", run.partition.error ? el("p", { class: "note" }, run.partition.error) : partitionFigure(run.partition)),
      section("Cost of each client", this.clients),
      section("Commands", ...run.commands.map((/** @type {Json} */ one) => command(one.text, one.why))),
      section("Settings", el("p", { class: "note" }, "These settings differ from the defaults:"), this.settings("Settings of its own", run.specs.filter((/** @type {Json} */ one) => one.own)), el("details", {}, el("summary", {}, `All ${run.specs.length} settings`), this.settings("All settings", run.specs))),
      section("Environment", run.environment.error ? el("p", { class: "note" }, run.environment.error) : table("Environment", ["name", "value"], Object.entries(run.environment))));
    for (const details of this.node.querySelectorAll("details")) if (open.has(details.querySelector("summary")?.textContent || "")) details.setAttribute("open", "");
    for (const chart of this.charts) chart.update(chart.lines);
    await Promise.all([this.loadCurves(run.name, ["test_accuracy", "test_loss"]), this.loadVisits("")]);
  }

  /** @param {string} caption @param {Json[]} specs */
  settings(caption, specs) { return table(caption, ["key", "value", "meaning"], specs.map((one) => [el("code", {}, one.name), el("bdi", {}, one.value), one.meaning])); }

  /** @param {string} name @param {string[]} metrics */
  async loadCurves(name, metrics) {
    const all = await Promise.all(metrics.map((metric) => fetchView("curves", { metric, x: "round", each: "1", lines: staticData ? "" : this.id })));
    for (const found of all) {
      const lines = unpackLines({ ...found, lines: found.lines.filter((/** @type {Json} */ line) => line.id === this.id) }, () => name);
      if (!lines.length || !this.curves) continue;
      const chart = new LineChart({ label: found.metric, x: found.axis, y: found.metric, wholeX: true, height: 240 });
      this.charts.push(chart);
      this.curves.append(chart.node);
      chart.update(lines);
    }
  }

  /** @param {Json} run */
  classes(run) {
    const parts = [];
    if (run.classes.error) parts.push(el("p", { class: "note" }, run.classes.error));
    else {
      const count = run.classes.values[0].length, known = run.partition.classes;
      const names = Array.from({ length: count }, (_, c) => String(known && known.length === count ? known[c] : c));
      parts.push(heatMap({ label: "Test accuracy of each class after each round (%)", columns: "round", rows: "class", columnNames: run.classes.rounds.map(String), rowNames: names, values: run.classes.values, max: 100, isLinear: true, format: (value) => num(value, 3), note: "No colour is 0 %, the full colour 100 %. A class that loses its colour has been forgotten." }));
    }
    if (run.places.error) parts.push(el("p", { class: "note" }, `Forgetting by position: ${run.places.error}`));
    else {
      const chart = new LineChart({ label: "Forgetting: accuracy on a class by the position in the round of the last client that holds it", x: "position in the round", y: "test accuracy (%)", wholeX: true, height: 220 });
      chart.lines = [{ label: `mean of the last ${run.places.last} rounds`, x: toNumbers(run.places.x), y: toNumbers(run.places.y) }];
      this.charts.push(chart);
      parts.push(chart.node);
    }
    return parts;
  }

  /** @param {string | number} first */
  async loadVisits(first) {
    if (!this.visits || !this.clients) return;
    try {
      const found = await fetchView("visits", { id: this.id, first });
      this.visits.replaceChildren(...this.timeline(found));
      this.clients.replaceChildren(this.costs(found.clients, found.clients_note));
    } catch (error) {
      this.visits.replaceChildren(errorBox(error));
      this.clients.replaceChildren(el("p", { class: "note" }, "The cost needs the same records."));
    }
  }

  /** @param {Json} found @returns {Node[]} */
  timeline(found) {
    if (!found.rounds.length) return [el("p", { class: "note" }, "No round is finished yet.")];
    const tall = Math.max(...found.rounds.map((/** @type {Json} */ round) => round.visits.length));
    const codes = /** @type {{[state: string]: number}} */ ({ made: 0, retried: 1, skipped: 2 });
    const at = (/** @type {number} */ j, /** @type {number} */ k) => found.rounds[j].visits[k];
    const values = found.rounds.map((/** @type {Json} */ round) => Array.from({ length: tall }, (_, k) => (round.visits[k] ? codes[round.visits[k].state] : null)));
    const picture = heatMap({
      label: "Timeline of visits", columns: "round", rows: "position", columnNames: found.rounds.map((/** @type {Json} */ round) => String(round.round)), rowNames: Array.from({ length: tall }, (_, k) => String(k + 1)), values, max: 2,
      format: (value, j, k) => (value === null ? "–" : value ? `${at(j, k).client} (${at(j, k).state})` : String(at(j, k).client)),
      paint: (ctx, k, j, x, y, w, h) => {
        const visit = at(j, k);
        if (!visit) return;
        ctx.fillStyle = colour({ made: "tint", retried: "c0", skipped: "c1" }[/** @type {"made" | "retried" | "skipped"} */ (visit.state)]);
        ctx.fillRect(x + 0.5, y + 0.5, Math.max(1, w - 1), h - 1);
        ctx.fillStyle = visit.state === "made" ? colour("ink") : colour("paper");
        ctx.textAlign = "center";
        const mark = { made: "", retried: "↻", skipped: "×" }[/** @type {"made" | "retried" | "skipped"} */ (visit.state)];
        if (w > 15) ctx.fillText(w > 26 ? mark + visit.client : mark || String(visit.client), x + w / 2, y + h / 2);
      },
      note: "Each column is a round, each cell a visit with the number of its client. × was skipped, ↻ was retried: it was leased more than once.",
    });
    const last = found.first + found.rounds.length, step = (/** @type {number} */ to) => () => this.loadVisits(Math.max(0, to));
    const buttons = el("div", { class: "controls" }, el("button", { type: "button", disabled: found.first === 0 || !!staticData, onclick: step(found.first - found.window) }, "Earlier rounds"), el("button", { type: "button", disabled: last >= found.total || !!staticData, onclick: step(last) }, "Later rounds"), el("span", { class: "note" }, `Rounds ${found.first} to ${last - 1} of ${found.total}; ${found.skipped} visits skipped, ${found.retried} retried in the whole run.`));
    const list = found.notes.length ? table("Skipped and retried visits", ["round", "client", "what", "why"], found.notes.slice(0, 100).map((/** @type {Json} */ one) => [one.round, one.client, one.state, one.why])) : el("p", { class: "note" }, "No visit was skipped or retried.");
    return [picture, buttons, list];
  }

  /** @param {Json[]} clients @param {string} text */
  costs(clients, text) {
    const measured = clients.some((one) => one.computing !== undefined), heads = ["client", "samples", "visits", "skipped", "bytes up", "bytes down", ...(measured ? ["computing", "waiting", "version", "last arrival"] : ["GFLOP"])];
    const rows = clients.slice(0, 200).map((one) => [one.client, one.samples, one.visits, one.skipped, bytes(one.up), bytes(one.down), ...(measured ? [seconds(one.computing), seconds(one.waiting), el("bdi", {}, one.software ?? "–"), one.last_arrival ?? "–"] : [one.flops === undefined ? "–" : num(one.flops / 1e9)])]);
    const listing = table("Cost of each client", heads, rows, { numeric: [1, 2, 3, 4, 5, 6] });
    const more = clients.length > 200 ? el("p", { class: "note" }, `and ${clients.length - 200} more clients`) : null;
    return el("div", {}, el("p", { class: "note" }, text), clients.length > 20 ? el("details", {}, el("summary", {}, `All ${clients.length} clients`), listing) : listing, more);
  }

  stop() {
    for (const chart of this.charts) chart.destroy();
    this.charts = [];
  }
}
