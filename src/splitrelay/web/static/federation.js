// @ts-check
// The view Federation: the status of a deployed run, asked every two seconds by the page's server.
"use strict";

const PAUSE = 2000; // milliseconds between two questions
const SOON = 30 * 86400; // seconds; a certificate that expires earlier is marked

class FederationView {
  constructor() {
    this.node = el("div", { class: "view" });
    this.timer = 0;
    this.isStopped = false;
  }

  async start() { await this.load(); }

  async load() {
    try {
      const found = await fetchView("federation");
      if (!found.address) { this.empty(el("p", { class: "box" }, "This page does not watch a deployed run.")); return; }
      if (!this.isStopped) this.draw(found.report, found.address);
    } catch (error) {
      if (!this.node.querySelector("#clients")) this.empty(errorBox(error));
      else this.note(String(/** @type {Error} */ (error).message));
    }
    if (!this.isStopped && !staticData) this.timer = window.setTimeout(() => this.load(), PAUSE);
  }

  /** Say what to do next. @param {Node} reason */
  empty(reason) {
    this.node.replaceChildren(el("h1", {}, "Federation"), reason, command("splitrelay page HOST:7443 --keys observer", "Watch a deployed run as an observer:"), command("splitrelay rehearse data=digits R=5", "No deployment yet? Rehearse one on this machine:"));
  }

  /** @param {string} text */
  note(text) {
    const place = this.node.querySelector("#trouble");
    if (place) place.textContent = text ? `The last answer is old: ${text}` : "";
  }

  /** @param {Json} report @param {string} address */
  draw(report, address) {
    const tiles = /** @type {[string, any][]} */ ([["phase", report.phase], ["round", `${report.round} of ${report.rounds}`], ["connected clients", `${report.clients.filter((/** @type {Json} */ one) => one.here).length} of ${report.clients.length}`], ["accuracy", report.test_accuracy === null ? "–" : percent(100 * report.test_accuracy)], ["sent by clients", bytes(report.bytes_up)], ["sent to clients", bytes(report.bytes_down)], ["remaining time", seconds(report.seconds_left)]]);
    const stalled = (report.waiting_for || []).filter((/** @type {Json} */ one) => one.stalled);
    this.node.replaceChildren(el("h1", {}, `Federation at ${address}`), el("p", { class: "note" }, `${report.algorithm}, ${report.route}, spec ${report.spec}${report.evaluator === null ? "" : report.evaluator ? ", the evaluator is here" : ", the evaluator is away"}`),
      el("p", { class: "note", id: "trouble" }), el("ul", { class: "tiles" }, ...tiles.map(([name, value]) => el("li", {}, el("strong", {}, value), " ", name))),
      ...stalled.map((/** @type {Json} */ one) => el("div", { class: "box bad" }, el("p", {}, `Waiting ${seconds(one.since)} for ${one.who}: ${one.why}. ${one.remedy}`))),
      section("Visits now", this.leases(report)), section("Clients", el("div", { id: "clients" }, this.clients(report))), section("Recent faults", this.faults(report)));
  }

  /** @param {Json} report */
  leases(report) {
    const leases = report.leases || [];
    if (!leases.length) return el("p", { class: "note" }, report.phase === "finished" ? "The run is finished. Download the model: splitrelay collect." : "No client has a lease at this moment.");
    return table("Leases", ["client", "round", "fence", "since", "last progress", "failures"], leases.map((/** @type {Json} */ one) => [one.client, one.round, one.fence, seconds(one.since), seconds(one.progress), one.failures]), { numeric: [1, 2, 3, 4, 5] });
  }

  /** @param {Json} report */
  clients(report) {
    const rows = report.clients.map((/** @type {Json} */ one) => {
      const state = el("span", { class: `state ${one.turn ? "turn" : one.here ? "here" : "away"}` }, `${one.here ? "here" : "away"}${one.turn ? ", its turn" : ""}${one.quarantine ? ", in quarantine" : ""}`);
      const left = one.certificate_seconds, certificate = left === null || left === undefined ? "–" : el("span", { class: left < SOON ? "state away" : null }, left < 0 ? "expired" : `${seconds(left)}${left < SOON ? " left, renew it" : ""}`);
      return [one.client, state, one.samples, one.visits, one.last_contact === null || one.last_contact === undefined ? "–" : `${seconds(one.last_contact)} ago`, bytes(one.socket_bytes_up), bytes(one.socket_bytes_down), seconds(one.computing_seconds), seconds(one.waiting_seconds), el("bdi", {}, one.software || "–"), certificate, one.strikes || 0];
    });
    return table("Clients", ["client", "state", "samples", "visits", "last contact", "bytes up", "bytes down", "computing", "waiting", "version", "certificate", "strikes"], rows, { numeric: [2, 3, 4, 5, 6, 7, 8] });
  }

  /** @param {Json} report */
  faults(report) {
    const faults = report.faults || [];
    if (!faults.length) return el("p", { class: "note" }, "None.");
    return table("Recent faults", ["ago", "event", "client", "why"], faults.map((/** @type {Json} */ one) => [seconds(one.ago), one.event, one.client ?? "–", el("bdi", {}, one.why || "–")]));
  }

  stop() {
    this.isStopped = true;
    window.clearTimeout(this.timer);
  }
}
