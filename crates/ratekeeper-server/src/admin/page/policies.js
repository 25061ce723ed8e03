// All policies with their limits, utilization and decisions.

import { $, el, keyed, setText } from "./dom.js";
import { count, exact, share } from "./format.js";

export const policies = { update };

const COUNTS = ["allowed", "denied", "shadow_denied", "delayed", "errors", "bans", "keys"];

function update(status) {
  keyed($("policies"), status.policies, (policy) => policy.policy, make, fill);
  $("envoy-card").hidden = status.envoy.length === 0;
  keyed($("envoy"), status.envoy, (rule) => rule.rule, ({ rule }) => el("tr", {}, el("th", { scope: "row", text: rule }), ...numbers(3)), (row, rule) => {
    setCounts(row, 1, [rule.allowed, rule.denied, rule.shadow_denied]);
  });
}

const numbers = (length) => Array.from({ length }, () => el("td", { class: "n" }));

function make({ policy }) {
  const name = el("th", { scope: "row" }, el("span", { text: policy }), " ", el("span", { class: "tag shadow", hidden: true }), el("span", { class: "sub" }));
  const level = el("div", { class: "level" }, el("div", { class: "track", "aria-hidden": "true" }, el("div", { class: "fill" })), el("span"));
  return el("tr", {}, name, el("td"), el("td", {}, level), ...numbers(COUNTS.length));
}

function fill(row, policy) {
  const [name, limits, level] = row.children;
  const [, mode, by] = name.children;
  const part = policy.enforced_percent;
  mode.hidden = policy.mode !== "shadow" && (part === undefined || part >= 100);
  setText(mode, policy.mode === "shadow" ? "shadow" : `for ${part} % of keys`);
  setText(by, policy.by.length ? `by ${policy.by.join(", ")}` : "one bucket for all");
  keyed(limits, policy.limits, (limit) => limit, (limit) => el("span", { class: "limit", text: limit }));
  const [track, text] = level.firstElementChild.children;
  const isShare = policy.usage_is === "share" && policy.usage !== null;
  track.hidden = !isShare;
  if (isShare) {
    track.firstElementChild.style.width = `${Math.min(1, policy.usage) * 100}%`;
    track.firstElementChild.classList.toggle("high", policy.usage >= 0.9);
    setText(text, share(policy.usage), `${policy.usage} of its bucket is used`);
  } else {
    const cost = policy.usage ?? 0;
    setText(text, `${count(cost)} in its window`, `A cost of ${cost} was allowed in the last window, all keys together`);
  }
  setCounts(row, 3, COUNTS.map((name) => policy[name]));
}

function setCounts(row, from, values) {
  values.forEach((value, at) => {
    const cell = row.children[from + at];
    setText(cell, value === null ? "–" : count(value), value === null ? "The store cannot count keys" : exact(value));
    cell.classList.toggle("zero", !value);
  });
}
