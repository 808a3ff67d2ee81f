// @ts-check
// Which view is shown, the theme, and the stream of events.
"use strict";

/** @type {any} */ let view = null;
/** @type {EventSource | null} */ let events = null;

/** @returns {any} */
function makeView() {
  const [, name, id] = location.hash.split("/");
  if (name === "run") return new RunView(id || "");
  if (name === "bounds") return new BoundsView();
  if (name === "partition") return new PartitionView();
  if (name === "federation") return new FederationView();
  return new RunsView();
}

async function show() {
  if (view) view.stop();
  const name = location.hash.split("/")[1] || "runs";
  for (const link of document.querySelectorAll("nav a")) {
    const isHere = link.getAttribute("href") === `#/${name === "run" ? "runs" : name}`;
    if (isHere) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  const mine = (view = makeView());
  const main = byId("main");
  main.replaceChildren(mine.node);
  try {
    await mine.start();
  } catch (error) {
    if (mine === view) mine.node.replaceChildren(el("h1", {}, "This view is not available"), errorBox(error), el("p", {}, el("a", { href: "#/runs" }, "All runs")));
    if (!(error instanceof ViewError)) console.error(error);
  }
  const title = main.querySelector("h1");
  document.title = `${title ? title.textContent : "Splitrelay"} - Splitrelay`;
}

/** Receive changed runs. The browser connects again by itself, and then gets only what has changed meanwhile. */
function listen() {
  if (staticData) {
    byId("live").textContent = `Written ${staticData.written}; it does not change.`;
    show();
    return;
  }
  events = new EventSource("events");
  let isStarted = false;
  events.addEventListener("open", () => { byId("live").textContent = "live"; });
  events.addEventListener("start", () => {
    if (isStarted && view && view.reloadSoon) view.reloadSoon();
    if (!isStarted) { isStarted = true; show(); } // after the start of the stream, so that no change is missed
  });
  events.addEventListener("error", () => {
    byId("live").textContent = "not connected; trying again";
    if (!isStarted) { isStarted = true; show(); }
  });
  events.addEventListener("runs", (event) => {
    if (view && view.change) view.change(JSON.parse(/** @type {MessageEvent} */ (event).data));
  });
}

/** @param {string} name */
function setTheme(name) {
  document.documentElement.dataset.theme = name;
  try { localStorage.setItem("splitrelay-theme", name); } catch { /* a static file may have no storage */ }
}

/** Draw all pictures in light colours and in the width of a sheet of paper, or as before. @param {boolean} isPrinted */
function prepare(isPrinted) {
  document.documentElement.dataset.theme = isPrinted ? "light" : theme.value;
  document.documentElement.classList.toggle("printed", isPrinted);
  for (const node of document.querySelectorAll(".plot, .heat")) redraws.get(node)?.();
}

const theme = /** @type {HTMLSelectElement} */ (byId("theme"));
try { theme.value = localStorage.getItem("splitrelay-theme") || "auto"; } catch { theme.value = "auto"; }
document.documentElement.dataset.theme = theme.value;
theme.addEventListener("change", () => { setTheme(theme.value); show(); });
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show());
window.addEventListener("beforeprint", () => prepare(true));
window.addEventListener("afterprint", () => prepare(false));
window.addEventListener("hashchange", () => { show().then(() => byId("main").focus()); });
listen();
