// @ts-check
// Elements, requests, numbers as text. Text from records is only ever inserted as text, never as HTML.
"use strict";

/** @typedef {{[name: string]: any}} Json */

/**
 * Make an element.
 * @param {string} tag
 * @param {Json} [attributes] names that begin with "on" are listeners; null and false are left out
 * @param {...(Node | string | number | null | undefined)} children
 * @returns {HTMLElement}
 */
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false && value !== undefined) node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children) if (child !== null && child !== undefined) node.append(child instanceof Node ? child : String(child));
  return node;
}

/** Return the element with this id. @param {string} id @returns {HTMLElement} */
function byId(id) {
  const node = document.getElementById(id);
  if (!node) throw new Error(`no element ${id}`);
  return node;
}

/** Tell screen readers something. @param {string} text */
function announce(text) { byId("announcement").textContent = text; }

const staticData = (() => {
  const node = document.getElementById("static-data");
  return node ? /** @type {Json} */ (JSON.parse(node.textContent || "{}")) : null;
})();

/** An error that the server explains. */
class ViewError extends Error {
  /** @param {string} text @param {string | null} [command] */
  constructor(text, command = null) { super(text); this.command = command; }
}

/** The key of a request in a static page. @param {string} name @param {Json} query */
function requestKey(name, query) {
  const parts = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return [name, ...parts.map(([key, value]) => `${key}=${value}`).sort()].join("&");
}

/**
 * Ask for a view. A static page has only the answers that were written into it.
 * @param {string} name
 * @param {Json} [query]
 * @param {AbortSignal} [signal]
 * @returns {Promise<Json>}
 */
async function fetchView(name, query = {}, signal) {
  if (staticData) {
    const found = staticData.views[requestKey(name, query)];
    if (found && !found.error) return found;
    throw new ViewError(found ? found.error : "This file has no server behind it, so it cannot compute this. Start the page:", found ? null : staticData.command);
  }
  const text = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined)).toString();
  let answer;
  try {
    answer = await fetch(`api/${name}?${text}`, { signal });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ViewError("The page's server does not answer. Start it again and open the new address:", "splitrelay page results");
  }
  const content = await answer.json();
  if (!answer.ok) throw new ViewError([content.error, content.error.includes(content.hint || "") ? "" : content.hint].filter(Boolean).join(" "));
  return content;
}

/** Return a function that runs `work` at most once at a time; the newest call wins. @param {(signal: AbortSignal) => Promise<void>} work @returns {() => void} */
function latest(work) {
  let controller = new AbortController();
  return () => {
    controller.abort();
    controller = new AbortController();
    work(controller.signal).catch((error) => { if (error.name !== "AbortError") console.error(error); });
  };
}

/** Return a function that runs `work` soon, at most once in so many milliseconds. @param {() => void} work @param {number} pause @returns {() => void} */
function throttle(work, pause) {
  let timer = 0, last = 0;
  return () => {
    if (timer) return;
    timer = window.setTimeout(() => { timer = 0; last = Date.now(); work(); }, Math.max(0, last + pause - Date.now()));
  };
}

/** A number for people, with four digits. @param {any} value @param {number} [digits] */
function num(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(digits - 1).replace(/\.?0*e\+?/, "e") : String(Number(value.toPrecision(digits)));
}

/** @param {number | null | undefined} value */
function percent(value) { return value === null || value === undefined ? "–" : `${value.toFixed(2)} %`; }

/** @param {number | null | undefined} count */
function bytes(count) {
  if (count === null || count === undefined) return "–";
  for (const [unit, size] of /** @type {[string, number][]} */ ([["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])) if (count >= size) return `${num(count / size)} ${unit}`;
  return `${num(count)} B`;
}

/** @param {number | null | undefined} value */
function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 86400) return `${(value / 86400).toFixed(1)} d`;
  if (value >= 3600) return `${(value / 3600).toFixed(1)} h`;
  return value >= 120 ? `${(value / 60).toFixed(1)} min` : `${num(value, 3)} s`;
}

/** A number whose full value is kept for copying and for tests. @param {string} name @param {any} value @param {string} [text] */
function exact(name, value, text) {
  return el("data", { value: value === null ? "null" : String(value), "data-name": name, title: value === null ? null : String(value) }, text ?? num(value));
}

/** A command with a button that copies it. @param {string} text @param {string} [why] */
function command(text, why) {
  const button = el("button", { type: "button", onclick: async () => {
    await navigator.clipboard.writeText(text);
    announce("Copied.");
  } }, "Copy");
  return el("div", { class: "command" }, why ? el("p", {}, why) : null, el("div", {}, el("pre", { tabindex: 0 }, text), button));
}

/** A box that says what is wrong and what to do next. @param {any} error */
function errorBox(error) {
  return el("div", { class: "box bad", role: "alert" }, el("p", {}, error.message || String(error)), error.command ? command(error.command) : null);
}

/**
 * A table. Cells are texts, numbers or nodes.
 * @param {string} caption
 * @param {(string | Node)[]} heads
 * @param {any[][]} rows
 * @param {Json} [options] `numeric` is the set of right-aligned columns, `rowHead` the column that names a row
 */
function table(caption, heads, rows, options = {}) {
  const numeric = new Set(options.numeric || []), rowHead = options.rowHead ?? 0;
  const line = (/** @type {any[]} */ cells) => el("tr", {}, ...cells.map((cell, j) => el(j === rowHead ? "th" : "td", { scope: j === rowHead ? "row" : null, class: numeric.has(j) ? "number" : null }, cell ?? "–")));
  return el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": caption }, el("table", {}, el("caption", { class: options.showCaption ? null : "hidden" }, caption),
    el("thead", {}, el("tr", {}, ...heads.map((head, j) => el("th", { scope: "col", class: numeric.has(j) ? "number" : null }, head)))),
    el("tbody", {}, ...rows.map(line))));
}

/** A section with a heading. @param {string} title @param {...(Node | string | null)} children */
function section(title, ...children) { return el("section", {}, el("h2", {}, title), ...children); }

/** A labelled select. @param {string} label @param {[string, string][]} options @param {string} value @param {(value: string) => void} change */
function choose(label, options, value, change) {
  const select = /** @type {HTMLSelectElement} */ (el("select", { onchange: () => change(select.value) }, ...options.map(([key, text]) => el("option", { value: key, selected: key === value }, text))));
  return el("label", {}, label, " ", select);
}
