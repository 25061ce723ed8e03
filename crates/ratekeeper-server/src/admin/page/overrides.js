// Bans and overrides in force, with buttons to lift them.

import { $, el, keyed, setText } from "./dom.js";
import { get } from "./api.js";
import { date, span } from "./format.js";
import { keyValues } from "./subject.js";
import { open } from "./act.js";

let ticks = 0;

export const overrides = { enter, update };

function enter(status) {
  ticks = 0;
  if (status) update(status);
}

async function update(status) {
  if (ticks++ % 2 !== 0) return;
  let entries;
  try {
    entries = await get("/admin/overrides");
  } catch {
    return;
  }
  $("no-overrides").hidden = entries.length > 0;
  keyed($("overrides"), entries, (entry) => JSON.stringify([entry.kind, entry.policy, entry.key, entry.limits, entry.reason, entry.node]), (entry) => {
    const name = entry.key || "one bucket for all";
    const by = status.policies.find((policy) => policy.policy === entry.policy)?.by ?? [];
    const lift = el("button", { class: "button slim", type: "button", text: "Lift…", "aria-label": `Lift the ${entry.kind} of ${name} under ${entry.policy}`, on: { click: () => open("lift", entry.policy, keyValues(by, entry) ?? {}) } });
    return el("tr", {},
      el("td", {}, el("span", { class: `tag ${entry.kind}`, text: entry.kind })),
      el("td", { text: entry.policy }),
      el("th", { scope: "row", class: "mono", text: name }),
      el("td", {}, ...(entry.limits ?? []).map((limit) => el("span", { class: "limit", text: limit }))),
      el("td"),
      el("td", { class: "long", text: entry.reason ?? "" }),
      el("td", { text: entry.node ?? "" }),
      el("td", { class: "n" }, lift));
  }, (row, entry) => setText(row.children[4], `in ${span(Math.max(0, entry.until_ms - status.now_ms))}`, date(entry.until_ms)));
}
