// The most active and the most denied keys.

import { $, el, keyed, setText } from "./dom.js";
import { get } from "./api.js";
import { count, exact } from "./format.js";
import { keyValues } from "./subject.js";
import { open } from "./act.js";

let ticks = 0;

export const keys = { enter: () => (ticks = 0), update };

function update(status) {
  if (ticks++ % 2 === 0) showTop([$("most-active"), $("most-denied")], 20, status, true);
}

/** Fills both lists, with `acts` also a ban button for each key that can be named. */
export async function showTop([active, denied], max, status, acts = false) {
  let top;
  try {
    top = await get(`/admin/top?n=${max}`);
  } catch {
    // The banner reports a lost connection; the next update retries.
    return;
  }
  showKeys(active, top.most_active.slice(0, max), status, acts, "No requests yet.");
  showKeys(denied, top.most_denied.slice(0, max), status, acts, "No denials yet.");
}

/** A list of keys as bars, or the text `empty`. */
export function showKeys(list, found, status, acts, empty) {
  const max = Math.max(1, ...found.map((key) => key.count));
  const items = found.length ? found : [null];
  keyed(list, items, (key) => (key ? `${key.policy}\n${key.key}` : ""), (key) => {
    if (!key) return el("li", { class: "none", text: empty });
    const name = key.key || "one bucket for all";
    const row = el("li", {}, el("span", { class: "bar", "aria-hidden": "true" }), el("span", { class: "key", title: name }, name, el("small", { text: key.policy })), el("span", { class: "number" }));
    const by = status?.policies.find((policy) => policy.policy === key.policy)?.by;
    const values = acts && by?.length ? keyValues(by, key) : null;
    if (values) row.append(el("button", { class: "button slim danger", type: "button", text: "Ban…", "aria-label": `Ban ${name} under ${key.policy}`, on: { click: () => open("ban", key.policy, values) } }));
    return row;
  }, (row, key) => {
    if (!key) return;
    row.children[0].style.width = `${(key.count / max) * 100}%`;
    const least = key.at_least === undefined ? "" : `, at least ${exact(key.at_least)}`;
    setText(row.children[2], count(key.count), `at most ${exact(key.count)}${least}`);
  });
}
