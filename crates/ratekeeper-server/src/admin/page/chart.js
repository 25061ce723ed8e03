// Charts in SVG: rates over time, sparklines, and bars.

import { el, svg } from "./dom.js";
import { rate, time } from "./format.js";

/** The next round number at or above: 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 15 … */
export function roundUp(value) {
  if (value <= 1) return 1;
  const ten = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * ten).find((step) => step >= value);
}

const FOOT = 20;
const SIDE = 38;

/** Allowed and denied over time, stacked, with a cursor to read values. */
export class TimeChart {
  #points = [];
  #millis = 300_000;
  #at = null;

  constructor(container) {
    this.container = container;
    this.drawing = svg("svg", { "aria-hidden": "true" });
    this.readout = el("div", { class: "readout", hidden: true });
    this.waiting = el("p", { class: "waiting", text: "Waiting for the first data" });
    container.append(this.drawing, this.readout, this.waiting);
    new ResizeObserver(() => this.#paint()).observe(container);
    container.addEventListener("pointermove", (event) => this.#point(event.clientX - container.getBoundingClientRect().left));
    container.addEventListener("pointerleave", () => this.#choose(null));
    container.addEventListener("blur", () => this.#choose(null));
    container.addEventListener("keydown", (event) => this.#key(event));
  }

  show(points, millis) {
    // The cursor stays on the same second while the chart moves.
    const read = this.#at === null ? undefined : this.#points[this.#at]?.at;
    this.#points = points;
    this.#millis = millis;
    if (read !== undefined) {
      const at = points.findIndex((point) => point.at === read);
      this.#at = at < 0 ? null : at;
    }
    this.#paint();
  }

  #x(at) {
    const now = this.#points.at(-1)?.at ?? 0;
    return SIDE + (1 - (now - at) / this.#millis) * (this.container.clientWidth - SIDE - 6);
  }

  #key(event) {
    const last = this.#points.length - 1;
    const now = this.#at ?? last + 1;
    const to = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last, Escape: null }[event.key];
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.readout.setAttribute("aria-live", "polite");
    this.#choose(to === null ? null : Math.max(0, Math.min(last, to)));
  }

  #point(x) {
    let best = null;
    this.#points.forEach((point, at) => {
      if (best === null || Math.abs(this.#x(point.at) - x) < Math.abs(this.#x(this.#points[best].at) - x)) best = at;
    });
    this.readout.removeAttribute("aria-live");
    this.#choose(best);
  }

  #choose(at) {
    this.#at = at;
    this.#paint();
  }

  #paint() {
    const [wide, high] = [this.container.clientWidth, this.container.clientHeight];
    if (!wide || !high) return;
    const points = this.#points;
    this.waiting.hidden = points.length > 0;
    const max = roundUp(Math.max(1, ...points.map((point) => point.allowed + point.denied)));
    const y = (value) => 8 + (1 - value / max) * (high - FOOT - 8);
    const parts = [];
    for (const part of [0, 0.5, 1]) {
      const at = y(max * part);
      parts.push(svg("line", { class: part ? "grid" : "zero", x1: SIDE, x2: wide - 6, y1: at, y2: at }));
      parts.push(svg("text", { x: SIDE - 8, y: at + 4, "text-anchor": "end", text: max * part < 1 && part ? "0.5" : rate(max * part) }));
    }
    const now = points.at(-1)?.at ?? 0;
    for (let tick = 0; tick <= 5; tick++) {
      const ago = (this.#millis * (5 - tick)) / 5;
      const label = ago === 0 ? "now" : ago >= 60_000 ? `−${ago / 60_000} min` : `−${ago / 1000} s`;
      const anchor = tick === 0 ? "start" : tick === 5 ? "end" : "middle";
      parts.push(svg("text", { x: this.#x(now - ago), y: high - 3, "text-anchor": anchor, text: label }));
    }
    if (points.length > 0) parts.push(...layers(points, (point) => this.#x(point.at), y));
    parts.push(...this.#reading(y, high, wide));
    this.drawing.setAttribute("viewBox", `0 0 ${wide} ${high}`);
    this.drawing.replaceChildren(...parts);
  }

  #reading(y, high, wide) {
    const point = this.#at === null ? undefined : this.#points[this.#at];
    this.readout.hidden = !point;
    if (!point) return [];
    const x = this.#x(point.at);
    this.readout.textContent = `${time(point.at)}\n${rate(point.allowed)} allowed/s\n${rate(point.denied)} denied/s`;
    this.readout.style.left = x > wide - 150 ? "auto" : `${x + 12}px`;
    this.readout.style.right = x > wide - 150 ? `${wide - x + 12}px` : "auto";
    return [
      svg("line", { class: "cross", x1: x, x2: x, y1: 8, y2: high - FOOT }),
      svg("circle", { class: "bead allowed", cx: x, cy: y(point.allowed), r: 4 }),
      svg("circle", { class: "bead denied", cx: x, cy: y(point.allowed + point.denied), r: 4 }),
    ];
  }
}

/** The areas and lines of allowed, with denied stacked on top. */
function layers(points, x, y) {
  const low = points.map((point) => [x(point), y(point.allowed)]);
  const high = points.map((point) => [x(point), y(point.allowed + point.denied)]);
  const floor = [[low.at(-1)[0], y(0)], [low[0][0], y(0)]];
  const path = (line) => line.map(([px, py]) => `${px.toFixed(1)} ${py.toFixed(1)}`).join("L");
  const denies = points.some((point) => point.denied > 0);
  return [
    svg("path", { class: "allowed-area", d: `M${path([...low, ...floor])}Z` }),
    denies ? svg("path", { class: "denied-area", d: `M${path([...high, ...low.toReversed()])}Z` }) : null,
    denies ? svg("path", { class: "denied-line", d: `M${path(high)}` }) : null,
    svg("path", { class: "allowed-line", d: `M${path(low)}` }),
  ].filter(Boolean);
}

/** A sparkline; the numbers beside it say the same. */
export function spark(container, points, millis) {
  const [wide, high] = [150, 28];
  const max = Math.max(1, ...points.map((point) => point.allowed + point.denied));
  const now = points.at(-1)?.at ?? 0;
  const x = (point) => (1 - (now - point.at) / millis) * wide;
  const y = (value) => 2 + (1 - value / max) * (high - 4);
  const drawing = container.firstElementChild ?? container.appendChild(svg("svg", { viewBox: `0 0 ${wide} ${high}`, "aria-hidden": "true" }));
  const zero = svg("line", { class: "grid", x1: 0, x2: wide, y1: high - 2, y2: high - 2 });
  const shadows = points.some((point) => point.shadow > 0);
  const line = shadows && points.map((point) => `${x(point).toFixed(1)} ${y(Math.min(max, point.shadow)).toFixed(1)}`).join("L");
  drawing.replaceChildren(zero, ...(points.length > 1 ? layers(points, x, y) : []), ...(line ? [svg("path", { class: "shadow-line", d: `M${line}` })] : []));
}

/** Bars side by side, each a rectangle of class `name`. */
export function bars(values, max, wide, high, name) {
  const each = wide / values.length;
  const gap = each > 4 ? 1 : 0;
  return values.flatMap((value, at) => {
    const tall = Math.min(1, value / max) * (high - 2);
    return value > 0 ? [svg("rect", { class: name, x: (at * each + gap / 2).toFixed(2), y: (high - tall).toFixed(2), width: (each - gap).toFixed(2), height: tall.toFixed(2), rx: each > 6 ? 1.5 : 0 })] : [];
  });
}
