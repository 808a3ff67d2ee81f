// @ts-check
// Line charts on uPlot's axes, and heat maps. uPlot draws axes and zooms; lines are drawn here, because each line has its own x values.
"use strict";

/**
 * @typedef {object} Line
 * @property {string} label
 * @property {Float64Array} x ascending; a missing value is NaN here and below
 * @property {Float64Array} y
 * @property {Float64Array} [low]
 * @property {Float64Array} [high]
 * @property {number} [fill] opacity of the band
 * @property {number} [colour] index of its colour
 */

/** How to draw a picture again, by its element. @type {WeakMap<Element, () => void>} */
const redraws = new WeakMap();
const COLOURS = 8;
const PATTERNS = [[], [6, 3], [2, 3], [8, 3, 2, 3]];
const NAMED = 12; // lines that a readout names
const HINT = "Point at the chart, or use the arrow keys, to read values. Drag to zoom, double-click to see everything.";
const WHOLE = [1, 2, 5].flatMap((digit) => [0, 1, 2, 3, 4, 5, 6].map((power) => digit * 10 ** power)).sort((a, b) => a - b); // distances of ticks

/** The ticks of a logarithmic axis: powers of ten, with 2 and 5 times them where there are few. @param {number} low @param {number} high */
function logTicks(low, high) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high)), powers = Array.from({ length: last - first + 1 }, (_, k) => 10 ** (first + k));
  const inside = (/** @type {number[]} */ list) => list.filter((tick) => tick >= low && tick <= high), tens = inside(powers), step = Math.ceil(tens.length / 8);
  return tens.length < 3 ? inside(powers.flatMap((power) => [power, 2 * power, 5 * power])) : tens.filter((_, k) => k % step === 0);
}

/** Numbers of a view. @param {(number | null)[]} list */
function toNumbers(list) { return Float64Array.from(list, (value) => value ?? NaN); }

/** Read packed numbers: base64 of 64-bit floats. @param {string} text */
function unpackNumbers(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let k = 0; k < raw.length; k++) bytes[k] = raw.charCodeAt(k);
  return new Float64Array(bytes.buffer);
}

/** The lines of the view "curves". @param {Json} found @param {(id: string) => string} getLabel @returns {(Line & {id: string})[]} */
function unpackLines(found, getLabel) {
  const xs = found.xs.map(unpackNumbers);
  return found.lines.map((/** @type {Json} */ line) => ({
    id: line.id, label: getLabel(line.id), x: xs[line.x], y: unpackNumbers(line.y), ...(line.low ? { low: unpackNumbers(line.low), high: unpackNumbers(line.high) } : {}),
  }));
}

/** A colour of the present theme. @param {string} name */
function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim(); }

/** Lines beyond the eight colours have dashes. More lines than that cannot be told apart, and dashes are slow to draw. @param {number} j @param {number} count @returns {number[]} */
function dashes(j, count) { return count > COLOURS * PATTERNS.length ? [] : PATTERNS[Math.floor(j / COLOURS)]; }

/** The smallest and largest number. @param {Iterable<ArrayLike<number>>} lists @param {boolean} positive @returns {[number, number]} */
function extent(lists, positive) {
  let low = Infinity, high = -Infinity;
  for (const list of lists) {
    for (let k = 0; k < list.length; k++) {
      const value = list[k];
      if (positive && value <= 0) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (low > high) return positive ? [0.1, 1] : [0, 1];
  return low === high ? (positive ? [low / 2, high * 2] : [low - 0.5, high + 0.5]) : [low, high];
}

/** The position of the value nearest to x in an ascending list. @param {Float64Array} list @param {number} x */
function nearest(list, x) {
  let low = 0, high = list.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (list[middle] < x) low = middle; else high = middle;
  }
  return Math.abs(list[low] - x) <= Math.abs(list[high] - x) ? low : high;
}

/** The map from values to pixels; what cannot be drawn is not finite. uPlot's own is slow for many points. @param {any} plot @param {string} name @returns {(value: number) => number} */
function makeMap(plot, name) {
  const { min, max, distr } = plot.scales[name], to = distr === 3 ? Math.log : (/** @type {number} */ value) => value;
  const start = plot.valToPos(min, name, true), slope = (plot.valToPos(max, name, true) - start) / (to(max) - to(min)), low = to(min);
  return (value) => start + slope * (to(value) - low);
}

/** A chart of lines with bands. Arrow keys move a cursor, whose values are read out; dragging zooms, a double click resets. */
class LineChart {
  /** @param {{label: string, x: string, y: string, logX?: boolean, logY?: boolean, wholeX?: boolean, height?: number, yRange?: [number, number]}} options */
  constructor(options) {
    this.options = options;
    /** @type {Line[]} */ this.lines = [];
    /** @type {{x: number, text: string}[]} */ this.marks = [];
    this.zoomed = false;
    this.canvas = el("div", { class: "plot", tabindex: 0, role: "slider", "aria-label": options.label, "aria-valuenow": 0, "aria-valuetext": "Use the arrow keys to read values.", onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event) });
    this.legend = el("ul", { class: "legend" });
    this.readout = el("p", { class: "readout" }, HINT);
    this.numbers = el("div");
    this.details = el("details", { ontoggle: () => this.listNumbers() }, el("summary", {}, "Last values as a table"), this.numbers);
    this.node = el("figure", { class: "chart" }, el("figcaption", {}, options.label), this.canvas, this.readout, this.legend, this.details);
    /** @type {any} */ this.plot = null;
    const fit = () => {
      if (!this.plot || !this.canvas.clientWidth) return;
      this.plot.setSize({ width: this.canvas.clientWidth, height: options.height || 300 });
      this.plot.redraw();
    };
    this.observer = new ResizeObserver(fit);
    this.observer.observe(this.canvas);
    redraws.set(this.canvas, fit);
  }

  /** Draw other lines. @param {Line[]} lines @param {{x: number, text: string}[]} [marks] */
  update(lines, marks = []) {
    this.lines = lines;
    this.marks = marks;
    const x = extent([...lines.map((line) => line.x), marks.map((mark) => mark.x)], !!this.options.logX);
    const y = this.options.yRange || extent(lines.flatMap((line) => (line.low && line.high ? [line.y, line.low, line.high] : [line.y])), !!this.options.logY);
    if (!this.plot) this.build([x, y]);
    else this.plot.setData([x, y], !this.zoomed);
    if (this.zoomed) this.plot.redraw();
    const isClear = lines.length <= COLOURS * PATTERNS.length, isAlone = lines.length < 2;
    const crowd = el("li", {}, `${lines.length} lines are more than colours can tell apart. Select fewer for a legend.`);
    this.legend.replaceChildren(...(isAlone ? [] : isClear ? lines.map((line, j) => this.legendEntry(line, j)) : [crowd]));
    this.listNumbers();
  }

  /** @param {Line} line @param {number} j */
  legendEntry(line, j) {
    const key = /** @type {SVGElement} */ (document.createElementNS("http://www.w3.org/2000/svg", "svg"));
    for (const [name, value] of Object.entries({ width: 26, height: 10, "aria-hidden": "true", class: `key s${(line.colour ?? j) % COLOURS}` })) key.setAttribute(name, String(value));
    const path = document.createElementNS("http://www.w3.org/2000/svg", line.fill ? "rect" : "line");
    const shape = line.fill ? { width: 26, height: 10 } : { x1: 0, x2: 26, y1: 5, y2: 5, "stroke-dasharray": dashes(line.colour ?? j, this.lines.length).join(" ") };
    for (const [name, value] of Object.entries(shape)) path.setAttribute(name, String(value));
    key.append(path);
    return el("li", {}, key, " ", el("bdi", {}, line.label));
  }

  /** @param {[number, number][]} data */
  build(data) {
    const { logX, logY, wholeX, x, y, height } = this.options, ink = () => colour("soft"), grid = { stroke: () => colour("line"), width: 1 };
    const font = "12px system-ui, sans-serif", format = (/** @type {any} */ _, /** @type {(number | null)[]} */ ticks) => ticks.map((tick) => (tick === null ? "" : num(tick, 3)));
    const range = (/** @type {any} */ _, /** @type {number} */ low, /** @type {number} */ high) => [low, high], splits = (/** @type {any} */ _, /** @type {number} */ axis, /** @type {number} */ low, /** @type {number} */ high) => logTicks(low, high);
    this.plot = new uPlot({
      width: this.canvas.clientWidth || 600, height: height || 300, legend: { show: false },
      cursor: { points: { show: false }, drag: { x: true, y: false, setScale: true } },
      scales: { x: { time: false, distr: logX ? 3 : 1, ...(logX ? { range } : {}) }, y: { distr: logY ? 3 : 1, ...(logY ? { range } : {}) } },
      axes: [{ stroke: ink, grid, ticks: grid, label: x, font, labelFont: font, size: 30, labelSize: 22, values: format, ...(logX ? { splits } : wholeX ? { incrs: WHOLE } : {}) }, { stroke: ink, grid, ticks: grid, label: y, font, labelFont: font, size: 62, values: format, ...(logY ? { splits } : {}) }],
      series: [{}, { paths: () => null, points: { show: false } }],
      hooks: {
        draw: [(/** @type {any} */ plot) => this.draw(plot)],
        setCursor: [(/** @type {any} */ plot) => { if (plot.cursor.left >= 0) this.read(plot.posToVal(plot.cursor.left, "x")); }],
        setSelect: [(/** @type {any} */ plot) => { this.zoomed = plot.select.width > 0; }],
      },
    }, data, this.canvas);
    this.canvas.addEventListener("dblclick", () => { this.zoomed = false; });
    for (const node of this.canvas.querySelectorAll("canvas")) node.setAttribute("aria-hidden", "true");
  }

  /** @param {any} plot */
  draw(plot) {
    const { ctx, bbox } = plot, ratio = devicePixelRatio || 1;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    const placeX = makeMap(plot, "x"), placeY = makeMap(plot, "y"), count = this.lines.length;
    const palette = Array.from({ length: COLOURS }, (_, j) => colour(`c${j}`));
    this.lines.forEach((line, j) => {
      const style = line.colour ?? j, x = line.x.map(placeX);
      ctx.strokeStyle = ctx.fillStyle = palette[style % COLOURS];
      if (line.low && line.high) this.fill(ctx, x, line.low.map(placeY), line.high.map(placeY), bbox.top + bbox.height, line.fill ?? 0.18);
      ctx.beginPath();
      ctx.lineWidth = (count > 30 ? 1 : 2) * ratio;
      ctx.setLineDash(line.fill ? [] : dashes(style, count).map((dash) => dash * ratio));
      let down = false;
      for (let k = 0; k < x.length; k++) {
        const y = placeY(line.y[k]);
        if (!isFinite(x[k]) || !isFinite(y)) down = false;
        else if (down) ctx.lineTo(x[k], y);
        else { ctx.moveTo(x[k], y); down = true; }
      }
      ctx.stroke();
    });
    ctx.setLineDash([4 * ratio, 4 * ratio]);
    ctx.lineWidth = ratio;
    ctx.strokeStyle = ctx.fillStyle = colour("ink");
    ctx.font = `${12 * ratio}px system-ui, sans-serif`;
    this.marks.forEach((mark, j) => {
      const x = placeX(mark.x);
      if (!isFinite(x)) return;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      const right = x > bbox.left + bbox.width / 2;
      ctx.textAlign = right ? "right" : "left";
      ctx.fillText(mark.text, x + (right ? -4 : 4) * ratio, bbox.top + (14 + 16 * j) * ratio);
    });
    ctx.restore();
  }

  /** Fill a band. A lower edge that a logarithmic axis cannot show is at the bottom. @param {CanvasRenderingContext2D} ctx @param {Float64Array} x @param {Float64Array} low @param {Float64Array} high @param {number} bottom @param {number} opacity */
  fill(ctx, x, low, high, bottom, opacity) {
    ctx.beginPath();
    for (let k = 0; k < x.length; k++) if (isFinite(x[k]) && isFinite(high[k])) ctx.lineTo(x[k], high[k]);
    for (let k = x.length - 1; k >= 0; k--) if (isFinite(x[k]) && isFinite(high[k])) ctx.lineTo(x[k], isFinite(low[k]) ? low[k] : bottom);
    ctx.globalAlpha = opacity;
    ctx.fill();
    ctx.globalAlpha = 1;
  }

  /** Show the values at x. @param {number} at */
  read(at) {
    const named = this.lines.filter((line) => line.x.length).slice(0, NAMED).map((line) => {
      const k = nearest(line.x, at);
      const band = line.low && line.high && !line.fill ? ` (${num(line.low[k])} to ${num(line.high[k])})` : "";
      return `${line.label}: ${num(line.y[k])}${band}`;
    });
    const more = this.lines.length > NAMED ? `; and ${this.lines.length - NAMED} more` : "";
    const text = `${this.options.x} ${num(at)}: ${named.join("; ")}${more}`;
    this.readout.textContent = text;
    return text;
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const xs = this.lines[0] ? this.lines[0].x : new Float64Array(), step = Math.max(1, Math.round(xs.length / 50));
    const moves = /** @type {{[key: string]: number}} */ ({ ArrowRight: step, ArrowUp: step, ArrowLeft: -step, ArrowDown: -step, Home: -xs.length, End: xs.length });
    if (!(event.key in moves) || !xs.length) return;
    event.preventDefault();
    const now = Number(this.canvas.getAttribute("aria-valuenow"));
    const k = Math.min(xs.length - 1, Math.max(0, nearest(xs, now) + moves[event.key])), at = xs[k];
    this.canvas.setAttribute("aria-valuenow", String(at));
    this.canvas.setAttribute("aria-valuetext", this.read(at));
    this.plot.setCursor({ left: this.plot.valToPos(at, "x"), top: 10 }, false);
  }

  listNumbers() {
    if (!this.details.hasAttribute("open")) return;
    const rows = this.lines.map((line) => {
      const k = line.x.length - 1, band = line.low && line.high && !line.fill;
      return [el("bdi", {}, line.label), num(line.x[k]), num(line.y[k]), band ? num((line.low || [])[k]) : "–", band ? num((line.high || [])[k]) : "–"];
    });
    this.numbers.replaceChildren(table(`${this.options.label}: last values`, ["line", this.options.x, this.options.y, "low", "high"], rows, { numeric: [1, 2, 3, 4] }));
  }

  destroy() {
    this.observer.disconnect();
    if (this.plot) this.plot.destroy();
  }
}

/**
 * A picture of a matrix with its numbers in a table below.
 * @param {{label: string, columns: string, rows: string, columnNames: string[], rowNames: string[], values: (number | null)[][], max: number, format: (value: number | null, column: number, row: number) => string, isLinear?: boolean, paint?: (ctx: CanvasRenderingContext2D, row: number, column: number, x: number, y: number, w: number, h: number) => void, note?: string}} options values[column][row]
 */
function heatMap(options) {
  const { values, rowNames, columnNames, max } = options;
  const canvas = /** @type {HTMLCanvasElement} */ (el("canvas", { role: "img", "aria-label": `${options.label}. The numbers are in the table below.` }));
  const readout = el("p", { class: "readout" }, options.note || "");
  const left = 56, bottom = 34, top = 4;
  const draw = () => {
    const width = holder.clientWidth, ratio = devicePixelRatio || 1;
    if (!width) return;
    const cell = (width - left - 4) / values.length, tall = Math.max(14, Math.min(24, 260 / rowNames.length)), height = tall * rowNames.length;
    canvas.width = width * ratio;
    canvas.height = (height + top + bottom) * ratio;
    canvas.style.height = `${height + top + bottom}px`;
    const ctx = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    ctx.scale(ratio, ratio);
    ctx.font = "11px system-ui, sans-serif";
    ctx.textBaseline = "middle";
    const hue = colour("c0"), ink = colour("ink"), paper = colour("paper");
    values.forEach((column, j) => column.forEach((value, k) => {
      const x = left + j * cell, y = top + k * tall;
      if (options.paint) { options.paint(ctx, k, j, x, y, cell, tall); return; }
      const part = value === null || max <= 0 ? 0 : Math.max(0, value) / max, share = options.isLinear ? part : Math.sqrt(part);
      ctx.globalAlpha = share;
      ctx.fillStyle = hue;
      ctx.fillRect(x, y, cell + 0.3, tall);
      ctx.globalAlpha = 1;
      if (cell > 30 && value) { ctx.fillStyle = share > 0.7 ? paper : ink; ctx.textAlign = "center"; ctx.fillText(options.format(value, j, k), x + cell / 2, y + tall / 2); }
    }));
    ctx.strokeStyle = colour("line");
    ctx.strokeRect(left, top, cell * values.length, height);
    ctx.fillStyle = colour("soft");
    ctx.textAlign = "right";
    rowNames.forEach((name, k) => ctx.fillText(name.slice(0, 7), left - 5, top + (k + 0.5) * tall));
    ctx.fillText(options.rows, left - 5, top + height + 10);
    ctx.textAlign = "center";
    const step = Math.ceil(values.length / Math.max(1, Math.floor(width / 60)));
    for (let j = 0; j < values.length; j += step) ctx.fillText(columnNames[j], left + (j + 0.5) * cell, top + height + 10);
    ctx.fillText(options.columns, left + (cell * values.length) / 2, top + height + 25);
  };
  canvas.addEventListener("mousemove", (event) => {
    const box = canvas.getBoundingClientRect(), tall = (box.height - top - bottom) / rowNames.length;
    const j = Math.floor((event.clientX - box.left - left) / ((box.width - left - 4) / values.length)), k = Math.floor((event.clientY - box.top - top) / tall);
    if (values[j] && values[j][k] !== undefined) readout.textContent = `${options.columns} ${columnNames[j]}, ${options.rows} ${rowNames[k]}: ${options.format(values[j][k], j, k)}`;
  });
  const numbers = el("div");
  const details = el("details", { ontoggle: () => {
    if (!numbers.hasChildNodes()) numbers.append(table(options.label, [options.columns, ...rowNames], values.map((column, j) => [columnNames[j], ...column.map((value, k) => options.format(value, j, k))]), { numeric: rowNames.map((_, k) => k + 1) }));
  } }, el("summary", {}, "Numbers as a table"), numbers);
  const holder = el("div", { class: "heat" }, canvas);
  new ResizeObserver(draw).observe(holder);
  redraws.set(holder, draw);
  return el("figure", { class: "chart" }, el("figcaption", {}, options.label), holder, readout, details);
}
