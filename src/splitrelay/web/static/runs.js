// @ts-check
// The view Runs: filter, curves, comparison, difference of specs.
"use strict";

const SHOWN = 50; // rows of the table before "show all"
const START = 12; // settings that are compared
const NOTES = 5; // lines that cannot be drawn and are named
const STATES = ["finished", "running", "stopped", "diverged", "failed", "damaged"];

/** What the list shows; it survives a visit of another view. @type {{text: string, state: string, metric: string, x: string, each: boolean, logY: boolean, selected: Set<string> | null, all: boolean}} */
const choices = { text: "", state: "", metric: "test_accuracy", x: "round", each: false, logY: false, selected: null, all: false };

class RunsView {
  constructor() {
    this.node = el("div", { class: "view" });
    /** @type {Json} */ this.list = { runs: [], lines: {}, keys: [], metrics: [], axes: {} };
    /** @type {LineChart | null} */ this.chart = null;
    /** @type {Map<string, Line>} */ this.drawn = new Map();
    /** @type {Set<string>} */ this.stale = new Set();
    this.refreshCurves = latest((signal) => this.loadCurves(signal));
    this.refreshSoon = throttle(() => this.refreshCurves(), 1000);
    this.reloadSoon = throttle(() => this.load(), 2000);
    this.compareSoon = throttle(() => this.compare(), 300);
  }

  async start() { await this.load(); }

  async load() {
    this.list = await fetchView("runs");
    const names = this.list.metrics.map((/** @type {Json} */ metric) => metric.name);
    if (!names.includes(choices.metric)) choices.metric = names.includes("test_accuracy") ? "test_accuracy" : names[0] || "test_accuracy";
    if (!choices.selected) {
      const first = new Set(this.list.first);
      choices.selected = new Set(this.list.runs.filter((/** @type {Json} */ run) => first.has(run.line)).map((/** @type {Json} */ run) => run.id));
    }
    this.render();
  }

  /** Merge changed runs that the server has sent. @param {Json} event */
  change(event) {
    const known = new Map(this.list.runs.map((/** @type {Json} */ run, /** @type {number} */ j) => [run.id, j]));
    let isNew = event.reload;
    for (const run of event.runs) {
      const j = known.get(run.id), old = j === undefined ? null : this.list.runs[j];
      if (j === undefined || !old || old.state !== run.state || old.line !== run.line) { isNew = true; continue; }
      this.list.runs[j] = { ...run, settings: old.settings };
      const row = document.getElementById(`row-${run.id}`);
      if (row) row.replaceWith(this.row(this.list.runs[j]));
      if (run.line && choices.selected && choices.selected.has(run.id)) this.stale.add(choices.each ? run.id : run.line);
    }
    if (isNew) this.reloadSoon();
    else if (this.stale.size) this.refreshSoon();
  }

  /** The keys that have a column of their own. @returns {string[]} */
  columns() { return this.list.columns; }

  /** @returns {Json[]} */
  visible() {
    const words = choices.text.toLowerCase().split(/\s+/).filter(Boolean);
    return this.list.runs.filter((/** @type {Json} */ run) => {
      const text = [run.name, run.hash, run.algorithm, run.data, run.partition, `seed=${run.seed}`, ...Object.entries(run.settings).map(([key, value]) => `${key}=${value}`)].join(" ").toLowerCase();
      return (!choices.state || run.state === choices.state) && words.every((word) => text.includes(word));
    });
  }

  render() {
    this.destroyChart();
    if (!this.list.runs.length) {
      const where = this.list.folder ? `There are no runs in ${this.list.folder} yet.` : "This page was started without a folder of runs.";
      this.node.replaceChildren(el("h1", {}, "Runs"), el("div", { class: "box" }, el("p", {}, where), command("splitrelay demo", "Train SSL and FedAvg on real digits, in a minute:"), command("splitrelay run data=digits C=2 R=50", "Or one run:"), el("p", {}, this.list.folder ? "New runs appear here by themselves." : "Then start the page with the folder: splitrelay page results")));
      return;
    }
    const search = /** @type {HTMLInputElement} */ (el("input", { type: "search", value: choices.text, placeholder: "name or key=value", oninput: () => { choices.text = search.value; this.renderTable(); } }));
    const finder = el("div", { class: "controls", role: "search" }, el("label", {}, "Filter ", search),
      choose("State", [["", "all"], ...STATES.map((state) => /** @type {[string, string]} */ ([state, state]))], choices.state, (value) => { choices.state = value; this.renderTable(); }));
    const controls = el("div", { class: "controls" },
      choose("Metric", this.list.metrics.map((/** @type {Json} */ metric) => [metric.name, metric.label]), choices.metric, (value) => { choices.metric = value; this.redraw(); }),
      choose("Horizontal axis", [["round", "rounds"], ["bytes", "bytes"], ["flops", "FLOPs"], ["seconds", "seconds"]], choices.x, (value) => { choices.x = value; this.redraw(); }),
      choose("Seeds", [["", "mean and band"], ["1", "each run"]], choices.each ? "1" : "", (value) => { choices.each = value === "1"; this.redraw(); }),
      choose("Vertical axis", [["", "linear"], ["1", "logarithmic"]], choices.logY ? "1" : "", (value) => { choices.logY = value === "1"; this.redraw(); }));
    this.plot = el("div", { id: "curves" });
    this.notes = el("div");
    this.count = el("p", { class: "note" });
    this.listing = el("div", { id: "listing" });
    this.comparison = el("div", { id: "comparison" });
    const best = this.bestRun(), running = this.list.runs.filter((/** @type {Json} */ run) => run.state === "running").length;
    this.node.replaceChildren(el("h1", {}, "Runs"), el("p", { class: "note" }, `${this.list.runs.length} runs in ${this.list.folder}${running ? `, ${running} running` : ""}. Select runs in the list to draw and compare them.`, best ? " Next: open " : "", best ? el("a", { href: `#/run/${best.id}` }, el("bdi", {}, best.name)) : "", best ? " to see its partition, the order of its visits, and the accuracy of each class." : ""),
      controls, this.plot, this.notes, section("List", finder, this.count, this.listing), section("Comparison", this.comparison), this.nextSteps());
    this.renderTable();
    this.redraw();
  }

  /** The run with the highest accuracy. @returns {Json | undefined} */
  bestRun() { return this.list.runs.reduce((/** @type {Json | undefined} */ best, /** @type {Json} */ run) => ((run.accuracy ?? -1) > (best?.accuracy ?? -1) ? run : best), undefined); }

  nextSteps() {
    const first = this.list.runs.find((/** @type {Json} */ run) => run.commands && run.state !== "finished") || this.bestRun();
    return section("Next steps", first ? command(first.commands[0].text, `${first.name}: ${first.commands[0].why}`) : null,
      command("splitrelay new first", "Write a commented spec of your own, then run it with splitrelay run first.toml:"),
      command(`splitrelay sweep algorithm=ssl,fedavg seed=1234,666,22 --out ${this.list.folder || "results"}/sweep`, "Compare two algorithms over three seeds:"));
  }

  /** @param {Json} run */
  row(run) {
    const box = /** @type {HTMLInputElement} */ (el("input", { type: "checkbox", checked: choices.selected && choices.selected.has(run.id), disabled: !run.rows, "aria-label": `draw ${run.name}`, onchange: () => { this.select([run.id], box.checked); } }));
    const cells = [el("a", { href: `#/run/${run.id}` }, el("bdi", {}, run.name)), run.algorithm, ...this.columns().map((/** @type {string} */ key) => run.settings[key]), run.seed];
    const why = run.why ? el("span", { class: "why" }, run.why) : null;
    const state = el("span", {}, el("span", { class: `state ${run.state}` }, run.state), why ? " " : null, why);
    const numbers = [run.R ? `${run.round} of ${run.R}` : "–", percent(run.accuracy), num(run.loss), bytes(run.bytes), seconds(run.seconds)];
    return el("tr", { id: `row-${run.id}` }, el("td", {}, box), el("th", { scope: "row" }, cells[0]), ...cells.slice(1).map((cell) => el("td", {}, el("bdi", {}, cell ?? "–"))), el("td", {}, state), ...numbers.map((text) => el("td", { class: "number" }, text)));
  }

  renderTable() {
    const runs = this.visible(), shown = choices.all ? runs : runs.slice(0, SHOWN);
    const isAll = shown.length > 0 && shown.every((run) => !run.rows || (choices.selected && choices.selected.has(run.id)));
    const every = /** @type {HTMLInputElement} */ (el("input", { type: "checkbox", checked: isAll, "aria-label": "draw all runs that are shown", onchange: () => { this.select(shown.filter((run) => run.rows).map((run) => run.id), every.checked); this.renderTable(); } }));
    const heads = ["run", "algorithm", ...this.columns(), "seed", "state"], numbers = ["round", "accuracy", "test loss", "bytes", "time"];
    if (this.count) this.count.textContent = `${runs.length} of ${this.list.runs.length} runs`;
    const body = shown.length ? el("tbody", {}, ...shown.map((run) => this.row(run))) : el("tbody", {}, el("tr", {}, el("td", { colspan: heads.length + numbers.length + 1 }, "No run matches. Change the filter.")));
    if (this.listing) this.listing.replaceChildren(el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "List of runs" }, el("table", {}, el("caption", { class: "hidden" }, "Runs"), el("thead", {}, el("tr", {}, el("td", {}, every), ...heads.map((head) => el("th", { scope: "col" }, head)), ...numbers.map((head) => el("th", { scope: "col", class: "number" }, head)))), body)),
      shown.length < runs.length ? el("button", { type: "button", onclick: () => { choices.all = true; this.renderTable(); } }, `Show all ${runs.length}`) : "");
  }

  /** @param {string[]} ids @param {boolean} isOn */
  select(ids, isOn) {
    for (const id of ids) if (choices.selected) choices.selected[isOn ? "add" : "delete"](id);
    this.refreshCurves();
    this.compareSoon();
  }

  /** The ids of the selected lines, in the order of the list. @param {boolean} each @returns {string[]} */
  selectedLines(each) {
    const runs = this.list.runs.filter((/** @type {Json} */ run) => choices.selected && choices.selected.has(run.id) && run.line);
    return [...new Set(/** @type {string[]} */ (runs.map((/** @type {Json} */ run) => (each ? run.id : run.line))))];
  }

  /** @param {string} id of a line, or of a run if each run is drawn */
  lineLabel(id) {
    if (!choices.each) return this.list.lines[id]?.label ?? id;
    const run = this.list.runs.find((/** @type {Json} */ one) => one.id === id);
    return run ? `${this.list.lines[run.line].label}, seed=${run.seed}` : id;
  }

  destroyChart() {
    if (this.chart) this.chart.destroy();
    this.chart = null;
    this.drawn.clear();
    this.stale.clear();
  }

  redraw() {
    this.destroyChart();
    this.refreshCurves();
    this.compareSoon();
  }

  /** Load the lines that are missing or have new rows, and draw. @param {AbortSignal} signal */
  async loadCurves(signal) {
    const wanted = this.selectedLines(choices.each), missing = wanted.filter((id) => !this.drawn.has(id) || this.stale.has(id));
    if (!this.plot || !this.notes) return;
    if (missing.length) {
      const every = new Set(this.list.runs.map((/** @type {Json} */ run) => run.line && (choices.each ? run.id : run.line)).filter(Boolean));
      const isAll = missing.length === every.size;
      let found;
      try {
        found = await fetchView("curves", { metric: choices.metric, x: choices.x, each: choices.each ? "1" : "", lines: staticData || isAll ? "" : missing.join(",") }, signal);
      } catch (error) {
        if (error instanceof ViewError) this.notes.replaceChildren(errorBox(error));
        throw error;
      }
      const getLabel = (/** @type {string} */ id) => this.lineLabel(id);
      for (const line of unpackLines(found, getLabel)) this.drawn.set(line.id, line);
      for (const id of missing) this.stale.delete(id);
      const failures = found.notes.slice(0, NOTES).map((/** @type {Json} */ note) => el("p", { class: "note" }, `Not drawn: ${getLabel(note.id)}: ${note.error}`));
      this.notes.replaceChildren(...failures, found.notes.length > NOTES ? el("p", { class: "note" }, `and ${found.notes.length - NOTES} more that are not drawn`) : "");
      if (!this.chart) {
        this.chart = new LineChart({ label: `${found.metric} by ${found.axis}`, x: found.axis, y: found.metric, logY: choices.logY, wholeX: choices.x === "round", height: 340 });
        this.plot.replaceChildren(this.chart.node);
      }
    }
    const lines = wanted.flatMap((id) => this.drawn.get(id) || []);
    if (!lines.length) this.plot.replaceChildren(el("p", { class: "box" }, "Nothing is selected that has this metric. Select runs in the list below."));
    else if (this.chart) {
      if (!this.chart.node.isConnected) this.plot.replaceChildren(this.chart.node);
      this.chart.update(lines);
    }
  }

  async compare() {
    const node = this.comparison, lines = this.selectedLines(false);
    if (!node) return;
    if (lines.length < 2) { node.replaceChildren(el("p", { class: "note" }, "Select runs of two settings to compare them.")); return; }
    const parts = [this.differences(lines.slice(0, START))];
    try {
      parts.unshift(this.verdicts(await fetchView("compare", { lines: lines.slice(0, START).join(",") })));
    } catch (error) { parts.unshift(errorBox(error)); }
    if (lines.length > START) parts.push(el("p", { class: "note" }, `Only the first ${START} of ${lines.length} settings are compared.`));
    node.replaceChildren(...parts);
  }

  /** @param {Json} found */
  verdicts(found) {
    const rows = found.rows.map((/** @type {Json} */ row) => {
      const wish = row.seeds_needed ? ` (about ${row.seeds_needed} seeds would decide)` : row.n < 2 ? " (needs two common seeds)" : "";
      return [el("bdi", {}, row.label), percent(row.accuracy), row.n, exact("difference", row.mean), row.interval.low === null ? "–" : `${num(row.interval.low)} to ${num(row.interval.high)}`, row.p_holm === null ? "–" : num(row.p_holm, 2), row.verdict + wish];
    });
    return el("div", {}, el("p", {}, "Compared with ", el("strong", {}, el("bdi", {}, found.baseline.label)), ` (${percent(found.baseline.accuracy)}), over the seeds that both have:`),
      table("Comparison of test accuracies", ["setting", "accuracy", "seeds", "difference (points)", "95 % interval", "p (Holm)", "verdict"], rows, { numeric: [1, 2, 3, 4, 5] }),
      el("p", { class: "note" }, `Even means within ${found.margin} points. The interval is a smoothed bootstrap over paired seeds. An accuracy is the mean over the last ${found.last} rounds, or over the last fifth of a shorter run.`));
  }

  /** The keys in which the selected settings differ. @param {string[]} lines */
  differences(lines) {
    const runs = lines.map((line) => this.list.runs.find((/** @type {Json} */ run) => run.line === line));
    const keys = this.list.keys.filter((/** @type {string} */ key) => new Set(runs.map((run) => run.settings[key])).size > 1);
    if (!keys.length) return el("p", { class: "note" }, "The selected settings have equal specs.");
    return el("div", {}, el("h3", {}, "Differences between the specs"), table("Differences between the specs", ["key", ...runs.map((run) => el("bdi", {}, run.name))], keys.map((/** @type {string} */ key) => [key, ...runs.map((run) => el("bdi", {}, run.settings[key]))])));
  }

  stop() { this.destroyChart(); }
}
