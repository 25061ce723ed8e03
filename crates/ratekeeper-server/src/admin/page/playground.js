// Draw traffic, choose limits, see what each admits. The server decides, with the limiter itself.

import { $, calmly, el, keyed, say, svg } from "./dom.js";
import { post } from "./api.js";
import { bars } from "./chart.js";
import { exact, plural, share, shareOf, span } from "./format.js";
import { Drawing } from "./drawing.js";

const BINS = 60;
const MOST_LIMITS = 8;
const ALGORITHMS = ["token_bucket", "leaky_bucket", "pacing", "fixed_window", "fixed_window_first_hit", "sliding_window", "sliding_window_strict", "sliding_log"];
const START = ["20/s", "20/s fixed_window", "20/s sliding_window", "20/s pacing"];

/** Traffic to begin with. Windows of a second have their edges at every tenth bar when a bar is 100 ms. */
const PRESETS = {
  steady: () => 3,
  edge: (at) => (at >= 17 && at < 23 ? 10 : at >= 37 && at < 43 ? 10 : at % 5 === 0 ? 1 : 0),
  spikes: (at) => (at % 12 === 4 ? 30 : at % 3 === 0 ? 1 : 0),
  ramp: (at) => Math.round((at / BINS) * 9),
  clear: () => 0,
};

export const playground = { enter };

let drawing = null;
let lanes = [];
let next = 0;
let turns = 0;
let unreadable = false;

const ask = calmly(run, 120);

function enter() {
  if (drawing) return;
  drawing = new Drawing($("arrivals"), BINS, changed);
  for (const button of $("presets").children) button.addEventListener("click", () => drawing.set(preset(button.dataset.preset)));
  $("bin").addEventListener("change", changed);
  $("arrivals-text").addEventListener("input", typed);
  $("add-limit").addEventListener("click", () => add("10/s burst 20", true));
  $("all-algorithms").addEventListener("click", everyAlgorithm);
  START.forEach((text) => add(text));
  drawing.set(preset("edge"));
}

const preset = (name) => Array.from({ length: BINS }, (_, at) => PRESETS[name](at));

function changed() {
  unreadable = false;
  const bin = Number($("bin").value);
  drawing.told(bin);
  say($("arrivals-total"), `${plural(drawing.total, "request")} in ${span(bin * BINS)}`);
  const text = drawing.values.join(" ");
  if (document.activeElement !== $("arrivals-text")) $("arrivals-text").value = text;
  for (const button of $("presets").children) button.setAttribute("aria-pressed", String(preset(button.dataset.preset).join(" ") === text));
  ask();
}

function typed() {
  const numbers = $("arrivals-text").value.split(/[\s,]+/).filter(Boolean).map(Number);
  if (numbers.some((number) => !Number.isInteger(number) || number < 0)) {
    // What was asked before says nothing of this, and must not wipe it away.
    unreadable = true;
    turns++;
    $("playground-wrong").textContent = "Arrivals are whole numbers from 0 on, with spaces or commas between them.";
    return;
  }
  drawing.set(Array.from({ length: BINS }, (_, at) => numbers[at] ?? 0));
}

function add(text, focus = false) {
  if (lanes.length >= MOST_LIMITS) {
    $("playground-wrong").textContent = `At most ${MOST_LIMITS} limits are compared at a time.`;
    return;
  }
  lanes.push({ id: String(next++), text });
  paint();
  if (focus) $("lanes").lastElementChild.querySelector("input").select();
  ask();
}

/** The first limit under each algorithm; what an algorithm has no room for is left out. */
function everyAlgorithm() {
  const rate = /^\s*\d+\s*\/\s*\w+/.exec(lanes[0]?.text ?? "")?.[0].trim() ?? "20/s";
  lanes = ALGORITHMS.map((algorithm) => ({ id: String(next++), text: `${rate} ${algorithm}` }));
  paint();
  ask();
}

async function run() {
  if (unreadable) return;
  const limits = lanes.map((lane) => lane.text);
  const turn = ++turns;
  let answer = null;
  if (limits.length > 0) {
    try {
      answer = await post("/admin/playground", { limits, bin_ms: Number($("bin").value), arrivals: drawing.values });
      if (turn === turns) $("playground-wrong").textContent = "";
    } catch (refusal) {
      if (turn === turns) $("playground-wrong").textContent = refusal.message;
    }
  }
  // Somebody drew on meanwhile: the answer to that is on its way.
  if (turn !== turns) return;
  lanes.forEach((lane, at) => (lane.told = answer?.limits[at]));
  paint();
}

function paint() {
  keyed($("lanes"), lanes, (lane) => lane.id, make, fill);
  const told = lanes.filter((lane) => lane.told);
  keyed($("admitted"), told, (lane) => lane.id, () => el("tr", {}, el("th", { scope: "row", class: "mono" }), ...[0, 1, 2, 3, 4].map(() => el("td", { class: "n" }))), (row, { told }) => {
    const { offered, admitted, later } = told.total;
    say(row.children[0], told.limit);
    [offered, admitted, offered - admitted, Math.max(0, ...told.admitted), later].forEach((number, at) => say(row.children[at + 1], exact(number)));
  });
}

function make(lane) {
  const input = el("input", { name: `limit-${lane.id}`, class: "mono", "aria-label": "Limit", autocomplete: "off", spellcheck: "false", on: { input: () => ((lane.text = input.value), ask()) } });
  input.value = lane.text;
  const remove = el("button", { class: "cross-out", type: "button", "aria-label": "Remove this limit", text: "×", on: { click: () => ((lanes = lanes.filter((other) => other !== lane)), paint(), ask(), $("add-limit").focus()) } });
  return el("div", { class: "lane" }, el("div", { class: "said" }, input, remove), el("div", { class: "chart", role: "img" }, svg("svg", { viewBox: "0 0 600 64", preserveAspectRatio: "none", "aria-hidden": "true" })), el("p", { class: "sum" }, el("strong"), el("span", { class: "fine" })));
}

function fill(row, { told, text }) {
  const [, place, sum] = row.children;
  row.classList.toggle("bad", !told && $("playground-wrong").textContent.includes(`\`${text}\``));
  if (!told) return;
  const most = Math.max(1, ...drawing.values, ...told.admitted);
  const { offered, admitted } = told.total;
  place.firstElementChild.replaceChildren(...bars(drawing.values, most, 600, 64, "ghost"), ...bars(told.admitted, most, 600, 64, "let-in"), svg("line", { class: "grid", x1: 0, x2: 600, y1: 63.5, y2: 63.5 }));
  place.setAttribute("aria-label", `${told.limit} admits ${exact(admitted)} of ${exact(offered)}`);
  say(sum.firstElementChild, `${exact(admitted)} of ${exact(offered)}`);
  say(sum.lastElementChild, `${share(shareOf(admitted, offered))} admitted`);
}
