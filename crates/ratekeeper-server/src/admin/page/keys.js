// The keys that come most and those that are turned away most.

import { $, el, keyed, say } from "./dom.js";
import { get } from "./api.js";
import { count, exact } from "./format.js";
import { keyValues } from "./subject.js";
import { open } from "./act.js";

let ticks = 0;

export const keys = { enter: () => (ticks = 0), update };

function update(status) {
  if (ticks++ % 2 === 0) showTop([$("heaviest"), $("most-denied")], 20, status, true);
}

/** Fills the two lists; `acts`: with a button for each key that can be named. */
export async function showTop([heaviest, denied], many, status, acts = false) {
  let top;
  try {
    top = await get(`/admin/top?n=${many}`);
  } catch {
    // The banner says when the server is gone, and the next second brings the list.
    return;
  }
  showKeys(heaviest, top.heaviest.slice(0, many), status, acts, "Nobody came yet.");
  showKeys(denied, top.most_denied.slice(0, many), status, acts, "Nobody was turned away yet.");
}

/** A list of keys as bars; nothing in it is said with a sentence. */
export function showKeys(list, found, status, acts, nothing) {
  const most = Math.max(1, ...found.map((key) => key.count));
  const items = found.length ? found : [null];
  keyed(list, items, (key) => (key ? `${key.policy}\n${key.key}` : ""), (key) => {
    if (!key) return el("li", { class: "none", text: nothing });
    const name = key.key || "one bucket for all";
    const line = el("li", {}, el("span", { class: "bar", "aria-hidden": "true" }), el("span", { class: "key", title: name }, name, el("small", { text: key.policy })), el("span", { class: "many" }));
    const by = status?.policies.find((policy) => policy.policy === key.policy)?.by;
    const values = acts && by?.length ? keyValues(by, key) : null;
    if (values) line.append(el("button", { class: "button slim danger", type: "button", text: "Ban…", "aria-label": `Ban ${name} under ${key.policy}`, on: { click: () => open("ban", key.policy, values) } }));
    return line;
  }, (line, key) => {
    if (!key) return;
    line.children[0].style.width = `${(key.count / most) * 100}%`;
    const least = key.at_least === undefined ? "" : `, at least ${exact(key.at_least)}`;
    say(line.children[2], count(key.count), `at most ${exact(key.count)}${least}`);
  });
}
