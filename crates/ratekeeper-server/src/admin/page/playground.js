// Draw traffic, choose limits, compare what each allows. The server decides, with the limiter itself.

import { $, debounce, el, keyed, setText, svg } from "./dom.js";
import { post } from "./api.js";
import { bars } from "./chart.js";
import { exact, plural, share, shareOf, span } from "./format.js";
import { Drawing } from "./drawing.js";

const BINS = 60;
const MAX_LIMITS = 8;
const ALGORITHMS = ["token_bucket", "leaky_bucket", "pacing", "fixed_window", "fixed_window_first_hit", "sliding_window", "sliding_window_strict", "sliding_log"];
const START = ["20/s", "20/s fixed_window", "20/s sliding_window", "20/s pacing"];

/** Preset traffic. With bars of 100 ms, windows of a second have their edges at every tenth bar. */
const PRESETS = {
  steady: () => 3,
  edge: (at) => (at >= 17 && at < 23 ? 10 : at >= 37 && at < 43 ? 10 : at % 5 === 0 ? 1 : 0),
  spikes: (at) => (at % 12 === 4 ? 30 : at % 3 === 0 ? 1 : 0),
  ramp: (at) => Math.round((at / BINS) * 9),
  clear: () => 0,
};

export const playground = { enter };

let drawing = null;
let rows = [];
let next = 0;
let lastRequest = 0;
let isInvalid = false;

const update = debounce(run, 120);

function enter() {
  if (drawing) return;
  drawing = new Drawing($("arrivals"), BINS, changed);
  for (const button of $("presets").children) button.addEventListener("click", () => drawing.set(preset(button.dataset.preset)));
  $("bin").addEventListener("change", changed);
  $("arrivals-text").addEventListener("input", typed);
  $("add-limit").addEventListener("click", () => add("10/s burst 20", true));
  $("all-algorithms").addEventListener("click", allAlgorithms);
  START.forEach((text) => add(text));
  drawing.set(preset("edge"));
}

const preset = (name) => Array.from({ length: BINS }, (_, at) => PRESETS[name](at));

function changed() {
  isInvalid = false;
  const bin = Number($("bin").value);
  drawing.setBin(bin);
  setText($("arrivals-total"), `${plural(drawing.total, "request")} in ${span(bin * BINS)}`);
  const text = drawing.values.join(" ");
  if (document.activeElement !== $("arrivals-text")) $("arrivals-text").value = text;
  for (const button of $("presets").children) button.setAttribute("aria-pressed", String(preset(button.dataset.preset).join(" ") === text));
  update();
}

function typed() {
  const numbers = $("arrivals-text").value.split(/[\s,]+/).filter(Boolean).map(Number);
  if (numbers.some((number) => !Number.isInteger(number) || number < 0)) {
    // A response to an earlier request must not clear this error.
    isInvalid = true;
    lastRequest++;
    $("playground-error").textContent = "Enter whole numbers separated by spaces or commas.";
    return;
  }
  drawing.set(Array.from({ length: BINS }, (_, at) => numbers[at] ?? 0));
}

function add(text, focus = false) {
  if (rows.length >= MAX_LIMITS) {
    $("playground-error").textContent = `At most ${MAX_LIMITS} limits can be compared; remove one first.`;
    return;
  }
  rows.push({ id: String(next++), text });
  paint();
  if (focus) $("limit-rows").lastElementChild.querySelector("input").select();
  update();
}

/** The rate of the first limit under each algorithm, without its other settings. */
function allAlgorithms() {
  const rate = /^\s*\d+\s*\/\s*\w+/.exec(rows[0]?.text ?? "")?.[0].trim() ?? "20/s";
  rows = ALGORITHMS.map((algorithm) => ({ id: String(next++), text: `${rate} ${algorithm}` }));
  paint();
  update();
}

async function run() {
  if (isInvalid) return;
  const limits = rows.map((limit) => limit.text);
  const request = ++lastRequest;
  let response = null;
  if (limits.length > 0) {
    try {
      response = await post("/admin/playground", { limits, bin_ms: Number($("bin").value), arrivals: drawing.values });
      if (request === lastRequest) $("playground-error").textContent = "";
    } catch (error) {
      if (request === lastRequest) $("playground-error").textContent = error.message;
    }
  }
  // A newer request is on its way.
  if (request !== lastRequest) return;
  rows.forEach((limit, at) => (limit.result = response?.limits[at]));
  paint();
}

function paint() {
  keyed($("limit-rows"), rows, (limit) => limit.id, make, fill);
  const decided = rows.filter((limit) => limit.result);
  keyed($("playground-results"), decided, (limit) => limit.id, () => el("tr", {}, el("th", { scope: "row", class: "mono" }), ...[0, 1, 2, 3, 4].map(() => el("td", { class: "n" }))), (row, { result }) => {
    const { offered, allowed, after_end } = result.total;
    setText(row.children[0], result.limit);
    [offered, allowed, offered - allowed, Math.max(0, ...result.allowed), after_end].forEach((number, at) => setText(row.children[at + 1], exact(number)));
  });
}

function make(limit) {
  const input = el("input", { name: `limit-${limit.id}`, class: "mono", "aria-label": "Limit", autocomplete: "off", spellcheck: "false", on: { input: () => ((limit.text = input.value), update()) } });
  input.value = limit.text;
  const remove = el("button", { class: "remove", type: "button", "aria-label": "Remove this limit", text: "×", on: { click: () => ((rows = rows.filter((other) => other !== limit)), paint(), update(), $("add-limit").focus()) } });
  return el("div", { class: "limit-row" }, el("div", { class: "inputs" }, input, remove), el("div", { class: "chart", role: "img" }, svg("svg", { viewBox: "0 0 600 64", preserveAspectRatio: "none", "aria-hidden": "true" })), el("p", { class: "sum" }, el("strong"), el("span", { class: "fine" })));
}

function fill(row, { result, text }) {
  const [, chart, sum] = row.children;
  row.classList.toggle("bad", !result && $("playground-error").textContent.includes(`\`${text}\``));
  if (!result) return;
  const max = Math.max(1, ...drawing.values, ...result.allowed);
  const { offered, allowed } = result.total;
  chart.firstElementChild.replaceChildren(...bars(drawing.values, max, 600, 64, "ghost"), ...bars(result.allowed, max, 600, 64, "allowed"), svg("line", { class: "grid", x1: 0, x2: 600, y1: 63.5, y2: 63.5 }));
  chart.setAttribute("aria-label", `${result.limit} allows ${exact(allowed)} of ${exact(offered)}`);
  setText(sum.firstElementChild, `${exact(allowed)} of ${exact(offered)}`);
  setText(sum.lastElementChild, `${share(shareOf(allowed, offered))} allowed`);
}
