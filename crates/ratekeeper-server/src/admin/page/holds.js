// Bans and overrides in force, and how to end them.

import { $, el, keyed, say } from "./dom.js";
import { get } from "./api.js";
import { date, span } from "./format.js";
import { keyValues } from "./subject.js";
import { open } from "./act.js";

let ticks = 0;

export const holds = { enter, update };

function enter(status) {
  ticks = 0;
  if (status) update(status);
}

async function update(status) {
  if (ticks++ % 2 !== 0) return;
  let found;
  try {
    found = await get("/admin/overrides");
  } catch {
    return;
  }
  $("no-holds").hidden = found.length > 0;
  keyed($("holds"), found, (hold) => JSON.stringify([hold.kind, hold.policy, hold.key, hold.limits, hold.reason, hold.node]), (hold) => {
    const name = hold.key || "one bucket for all";
    const by = status.policies.find((policy) => policy.policy === hold.policy)?.by ?? [];
    const lift = el("button", { class: "button slim", type: "button", text: "Lift…", "aria-label": `Lift the ${hold.kind} of ${name} under ${hold.policy}`, on: { click: () => open("lift", hold.policy, keyValues(by, hold) ?? {}) } });
    return el("tr", {},
      el("td", {}, el("span", { class: `tag ${hold.kind}`, text: hold.kind })),
      el("td", { text: hold.policy }),
      el("th", { scope: "row", class: "mono", text: name }),
      el("td", {}, ...(hold.limits ?? []).map((limit) => el("span", { class: "limit", text: limit }))),
      el("td"),
      el("td", { class: "long", text: hold.reason ?? "" }),
      el("td", { text: hold.node ?? "" }),
      el("td", { class: "n" }, lift));
  }, (row, hold) => say(row.children[4], `in ${span(Math.max(0, hold.until_ms - status.now_ms))}`, date(hold.until_ms)));
}
