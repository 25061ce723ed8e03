// The audit log: changes and attempts.

import { $, el, keyed } from "./dom.js";
import { get } from "./api.js";
import { date } from "./format.js";

let ticks = 0;

export const audit = { enter: () => (ticks = 0), update };

async function update() {
  if (ticks++ % 2 !== 0) return;
  let entries;
  try {
    entries = await get("/admin/audit?n=100");
  } catch {
    return;
  }
  $("no-audit").hidden = entries.length > 0;
  // Equal entries of one millisecond are distinguished by a counter.
  const seen = new Map();
  const numbered = entries.toReversed().map((entry) => {
    const text = JSON.stringify(entry);
    seen.set(text, (seen.get(text) ?? 0) + 1);
    return { ...entry, id: `${text} ${seen.get(text)}` };
  });
  keyed($("audit"), numbered.toReversed(), (entry) => entry.id, (entry) =>
    el("tr", {},
      el("th", { scope: "row", text: date(entry.at_ms), title: String(entry.at_ms) }),
      el("td", {}, el("span", { class: `tag ${entry.outcome}`, text: entry.outcome })),
      el("td", { text: entry.action }),
      el("td", { text: entry.policy ?? "" }),
      el("td", { class: "mono", text: entry.key ?? "" }),
      el("td", { class: "long", text: entry.detail ?? "" }),
      el("td", { class: "mono", text: entry.who })));
}
