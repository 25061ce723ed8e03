// Bars that are drawn with a pointer or with arrow keys.

import { svg } from "./dom.js";
import { bars } from "./chart.js";
import { plural, span } from "./format.js";

/** The largest value that can be drawn; larger ones can be typed. */
const MAX_DRAWN = 30;
const FOOT = 18;

export class Drawing {
  #at = 0;
  #bin = 100;
  #last = null;

  constructor(container, bins, changed) {
    this.container = container;
    this.values = new Array(bins).fill(0);
    this.changed = changed;
    this.drawing = svg("svg", { "aria-hidden": "true" });
    container.append(this.drawing);
    new ResizeObserver(() => this.#paint()).observe(container);
    container.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      container.setPointerCapture(event.pointerId);
      this.#last = null;
      this.#draw(event);
    });
    container.addEventListener("pointermove", (event) => {
      if (container.hasPointerCapture(event.pointerId)) this.#draw(event);
    });
    container.addEventListener("keydown", (event) => this.#key(event));
    container.addEventListener("focus", () => this.#paint());
  }

  get total() {
    return this.values.reduce((sum, value) => sum + value, 0);
  }

  set(values) {
    this.values = values;
    this.changed();
  }

  /** Sets the length of a bar in milliseconds and repaints. */
  setBin(bin) {
    this.#bin = bin;
    this.#paint();
  }

  /** Fills in from the last pointer position, so that a quick stroke leaves no gaps. */
  #draw(event) {
    const box = this.container.getBoundingClientRect();
    const part = (event.clientX - box.left) / box.width;
    const at = Math.max(0, Math.min(this.values.length - 1, Math.floor(part * this.values.length)));
    const high = 1 - (event.clientY - box.top) / (box.height - FOOT);
    const value = Math.max(0, Math.min(MAX_DRAWN, Math.round(high * MAX_DRAWN)));
    const from = this.#last ?? { at, value };
    const steps = Math.max(1, Math.abs(at - from.at));
    for (let step = 0; step <= steps; step++) {
      const between = from.at + Math.round(((at - from.at) * step) / steps);
      this.values[between] = Math.round(from.value + ((value - from.value) * step) / steps);
    }
    this.#last = { at, value };
    this.#at = at;
    this.changed();
  }

  #key(event) {
    const step = event.shiftKey ? 5 : 1;
    const last = this.values.length - 1;
    const move = { ArrowLeft: this.#at - step, ArrowRight: this.#at + step, Home: 0, End: last }[event.key];
    const change = { ArrowUp: step, ArrowDown: -step, PageUp: 10, PageDown: -10, Delete: -Infinity, Backspace: -Infinity }[event.key];
    if (move === undefined && change === undefined) return;
    event.preventDefault();
    if (move !== undefined) {
      this.#at = Math.max(0, Math.min(last, move));
      this.#paint();
    } else {
      const before = this.values[this.#at];
      this.values[this.#at] = Math.max(0, Math.min(Math.max(MAX_DRAWN, before), before + change));
      this.changed();
    }
  }

  #paint() {
    const [wide, high] = [this.container.clientWidth, this.container.clientHeight];
    const value = this.values[this.#at];
    this.container.setAttribute("aria-valuenow", value);
    this.container.setAttribute("aria-valuemax", Math.max(MAX_DRAWN, ...this.values));
    this.container.setAttribute("aria-valuetext", `Bar ${this.#at + 1} of ${this.values.length}, at ${span(this.#at * this.#bin)}: ${plural(value, "request")}`);
    if (!wide) return;
    const max = Math.max(MAX_DRAWN, ...this.values);
    const each = wide / this.values.length;
    const floor = high - FOOT;
    const grid = [0.5, 1].map((part) => svg("line", { class: "grid", x1: 0, x2: wide, y1: floor - part * (floor - 2), y2: floor - part * (floor - 2) }));
    const sixths = [0, 1, 2, 3, 4, 5, 6].map((part) => svg("text", { x: (wide * part) / 6, y: high - 3, "text-anchor": part === 0 ? "start" : part === 6 ? "end" : "middle", text: part === 0 ? "0" : span((this.#bin * this.values.length * part) / 6) }));
    const edges = [1, 2, 3, 4, 5].map((part) => svg("line", { class: "grid", x1: (wide * part) / 6, x2: (wide * part) / 6, y1: 0, y2: floor }));
    const selected = svg("rect", { class: "selected", x: this.#at * each, y: 1, width: each, height: floor - 1, rx: 2 });
    this.drawing.setAttribute("viewBox", `0 0 ${wide} ${high}`);
    this.drawing.replaceChildren(...grid, ...edges, ...bars(this.values, max, wide, floor, "offered"), svg("line", { class: "zero", x1: 0, x2: wide, y1: floor, y2: floor }), selected, ...sixths);
  }
}
