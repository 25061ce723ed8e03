// Adaptive limits and load shedding.

import { $, el, keyed, setText } from "./dom.js";
import { count, exact, plural, share } from "./format.js";

export const overload = { update };

const millis = (time) => (time === null || time === undefined ? "–" : `${time < 10 ? time.toFixed(1) : Math.round(time)} ms`);

function update({ overload }) {
  const limits = overload?.limits ?? [];
  $("no-adaptive").hidden = limits.length > 0;
  keyed($("adaptive"), limits, (limit) => limit.policy, ({ policy, algorithm }) => {
    const level = el("div", { class: "level range" }, el("div", { class: "track", "aria-hidden": "true" }, el("div", { class: "fill" })), el("span"));
    return el("tr", {}, el("th", { scope: "row", text: policy }), el("td", { text: algorithm }), el("td", {}, level), ...[0, 1, 2, 3].map(() => el("td", { class: "n" })));
  }, (row, limit) => {
    const [track, text] = row.children[2].firstElementChild.children;
    track.firstElementChild.style.width = `${((limit.limit - limit.min) / Math.max(1, limit.max - limit.min)) * 100}%`;
    setText(text, `${exact(limit.limit)} of ${exact(limit.min)} to ${exact(limit.max)}`);
    const { waited_too_long: long = 0, queue_full: full = 0 } = limit.denied ?? {};
    const [inFlight, queued, latency, baseline] = [...row.children].slice(3);
    setText(inFlight, count(limit.in_flight));
    setText(latency, millis(limit.latency_ms));
    setText(baseline, millis(limit.baseline_ms));
    setText(queued, count(limit.queued), long + full > 0 ? `${exact(long)} waited too long, ${exact(full)} found the queue full` : "");
  });
  const late = overload?.late ?? 0;
  $("late").hidden = late === 0;
  setText($("late"), `${plural(late, "request")} had passed their deadline and were denied.`);
  const shed = overload?.shed;
  $("shed-card").hidden = !shed;
  if (!shed) return;
  $("shed-fill").style.width = `${Math.min(1, shed.pressure) * 100}%`;
  $("shed-fill").classList.toggle("high", shed.pressure >= 0.8);
  setText($("shed-load"), `load ${share(shed.pressure)}`, String(shed.pressure));
  setText($("shed-lowest"), `${plural(shed.classes.length, "class", "classes")}; lowest class served: ${(shed.lowest_served ?? "none").replaceAll("_", " ")}`);
  keyed($("shed"), shed.classes, (one) => one.class, (one) => el("tr", {}, el("th", { scope: "row", text: one.class.replaceAll("_", " ") }), el("td", { class: "n" }), el("td", { class: "n" })), (row, one) => {
    setText(row.children[1], count(one.allowed), exact(one.allowed));
    setText(row.children[2], count(one.shed), exact(one.shed));
  });
}
