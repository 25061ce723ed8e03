// What limits that only watch would have turned away, beside what was turned away.

import { $, el, keyed, say } from "./dom.js";
import { get } from "./api.js";
import { exact, share, shareOf } from "./format.js";
import { passed } from "./history.js";
import { showKeys } from "./keys.js";

let ticks = 0;
let told = [];

export const shadow = { enter: () => (ticks = 0), update };

async function update(status) {
  paint(status);
  if (ticks++ % 2 !== 0) return;
  try {
    told = await get("/admin/shadow");
  } catch {
    return;
  }
  paint(status);
}

function paint(status) {
  const watching = status.policies.filter((policy) => policy.mode === "shadow" || policy.shadow_denied > 0 || told.some((one) => one.policy === policy.policy));
  keyed($("shadow"), watching.length ? watching : [null], (policy) => policy?.policy ?? "", make, (card, policy) => {
    if (policy) fill(card, policy, status);
  });
}

function make(policy) {
  if (!policy) return el("p", { class: "card none", text: "No policy only watches. Write action = \"shadow\" in one to see here what it would turn away, before it does." });
  const track = (kind) => el("div", { class: "track", "aria-hidden": "true" }, el("div", { class: `fill ${kind}` }));
  const pair = el("div", { class: "pair" }, el("span", { text: "Turned away" }), track("high"), el("span"), el("span", { text: "Would have been" }), track("shadow"), el("span"));
  const head = el("div", { class: "head" }, el("h2", { text: policy.policy }), el("span", { class: "tag" }), el("span", { class: "fine" }));
  return el("div", { class: "card" }, head, pair, el("h3", { text: "Keys it would turn away most" }), el("ol", { class: "bars shadow" }));
}

function fill(card, policy, status) {
  const [head, pair, title, list] = card.children;
  const all = passed(policy) + policy.denied;
  say(head.children[1], policy.mode === "shadow" ? "shadow" : "enforced in part");
  head.children[1].className = policy.mode === "shadow" ? "tag shadow" : "tag";
  say(head.children[2], policy.limits.join(", "));
  [policy.denied, policy.shadow_denied].forEach((many, at) => {
    const part = shareOf(many, all);
    pair.children[at * 3 + 1].firstElementChild.style.width = `${Math.min(1, part || 0) * 100}%`;
    say(pair.children[at * 3 + 2], `${share(part)} · ${exact(many)} of ${exact(all)}`);
  });
  const keys = told.find((one) => one.policy === policy.policy)?.top ?? [];
  title.hidden = keys.length === 0;
  list.hidden = keys.length === 0;
  showKeys(list, keys, status, false, "Nobody yet.");
}
