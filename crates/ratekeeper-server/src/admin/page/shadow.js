// What policies in shadow mode would have denied, beside what was denied.

import { $, el, keyed, setText } from "./dom.js";
import { get } from "./api.js";
import { exact, share, shareOf } from "./format.js";
import { allowedOf } from "./history.js";
import { showKeys } from "./keys.js";

let ticks = 0;
let reports = [];

export const shadow = { enter: () => (ticks = 0), update };

async function update(status) {
  paint(status);
  if (ticks++ % 2 !== 0) return;
  try {
    reports = await get("/admin/shadow");
  } catch {
    return;
  }
  paint(status);
}

function paint(status) {
  const shown = status.policies.filter((policy) => policy.mode === "shadow" || policy.shadow_denied > 0 || reports.some((one) => one.policy === policy.policy));
  keyed($("shadow"), shown.length ? shown : [null], (policy) => policy?.policy ?? "", make, (card, policy) => {
    if (policy) fill(card, policy, status);
  });
}

function make(policy) {
  if (!policy) return el("p", { class: "card none", text: "No policy in shadow mode. Set action = \"shadow\" in a policy to see what it would deny." });
  const track = (kind) => el("div", { class: "track", "aria-hidden": "true" }, el("div", { class: `fill ${kind}` }));
  const pair = el("div", { class: "pair" }, el("span", { text: "Denied" }), track("high"), el("span"), el("span", { text: "Would be denied" }), track("shadow"), el("span"));
  const head = el("div", { class: "head" }, el("h2", { text: policy.policy }), el("span", { class: "tag" }), el("span", { class: "fine" }));
  return el("div", { class: "card" }, head, pair, el("h3", { text: "Keys it would deny most" }), el("ol", { class: "bars shadow" }));
}

function fill(card, policy, status) {
  const [head, pair, title, list] = card.children;
  const all = allowedOf(policy) + policy.denied;
  setText(head.children[1], policy.mode === "shadow" ? "shadow" : "partly enforced");
  head.children[1].className = policy.mode === "shadow" ? "tag shadow" : "tag";
  setText(head.children[2], policy.limits.join(", "));
  [policy.denied, policy.shadow_denied].forEach((number, at) => {
    const part = shareOf(number, all);
    pair.children[at * 3 + 1].firstElementChild.style.width = `${Math.min(1, part || 0) * 100}%`;
    setText(pair.children[at * 3 + 2], `${share(part)} · ${exact(number)} of ${exact(all)}`);
  });
  const keys = reports.find((one) => one.policy === policy.policy)?.top ?? [];
  title.hidden = keys.length === 0;
  list.hidden = keys.length === 0;
  showKeys(list, keys, status, false, "None yet.");
}
