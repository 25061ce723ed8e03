// Try a subject: how each policy would decide it now, with actions on its key.

import { $, el, keyed } from "./dom.js";
import { post } from "./api.js";
import { exact, plural, span } from "./format.js";
import { subjectOf, words } from "./subject.js";
import { open } from "./act.js";

export const explain = { enter, update };

const PLACEHOLDERS = { ip: "203.0.113.7", method: "GET", path: "/api/x", user: "42" };
let policies = [];
let isReady = false;
let hasResult = false;

function enter() {
  if (!isReady) {
    isReady = true;
    $("try").addEventListener("submit", (event) => {
      event.preventDefault();
      run();
    });
  }
  // Refreshed after a ban or reset.
  if (hasResult) run();
}

/** A field for each attribute of a key, besides those of every request. */
function update(status) {
  policies = status.policies;
  const names = [...new Set(["ip", "method", "path", ...policies.flatMap((policy) => policy.by)])];
  keyed($("try-fields"), names, (name) => name, (name) => {
    const input = el("input", { name, "data-name": name, class: "mono", placeholder: PLACEHOLDERS[name] ?? "", autocomplete: "off", spellcheck: "false" });
    return el("label", { class: "field", text: name }, input);
  });
}

const pairs = () => [...$("try-fields").querySelectorAll("input")].map((input) => [input.dataset.name, input.value.trim()]);

async function run() {
  $("try-error").textContent = "";
  try {
    const attributes = [...pairs(), ...words($("try-more").value)];
    const cost = Number($("try-cost").value || 1);
    const result = await post("/admin/explain", { subject: subjectOf(attributes), cost });
    hasResult = true;
    show(result, Object.fromEntries(attributes));
  } catch (error) {
    $("try-error").textContent = error.message;
    $("try-result").replaceChildren();
  }
}

const REASONS = {
  no_policy: "no policy applies",
  allow_list: "on the allow list: no limit is checked",
  deny_list: "on the deny list",
  ban: "banned",
  missing_attribute: "an attribute of the key is missing",
  off: "limits are disabled",
  closed: "the store is unavailable",
};

function show(result, values) {
  let outcome = "Allowed";
  if (result.allowed && result.delay_ms > 0) outcome = `Allowed after ${span(result.delay_ms)}`;
  if (!result.allowed) outcome = result.policy ? `Denied by ${result.policy}` : "Denied";
  const more = [!result.allowed && `status ${result.status}`, REASONS[result.reason], result.never && "waiting will not help", !result.allowed && !result.never && result.retry_after_ms !== null && `allowed in ${span(result.retry_after_ms)} if no other requests come`];
  const verdict = el("div", { class: result.allowed ? "card verdict" : "card verdict no" }, el("strong", { text: outcome }), el("span", { class: "fine", text: more.filter(Boolean).join("; ") }));
  const applies = result.policies.filter((tried) => tried.applies);
  const skipped = result.policies.filter((tried) => !tried.applies);
  const aside = skipped.map((tried) => el("p", { class: "card skipped" }, el("strong", { text: tried.policy }), ` does not apply: ${tried.reason}`));
  $("try-result").replaceChildren(verdict, el("div", { class: "tried" }, ...applies.map((tried) => policyCard(tried, values)), ...aside));
}

function counted(tried) {
  if (!tried.missing) return tried.key ? `counted by ${tried.key}` : "one bucket for all";
  const { attribute, action } = tried.missing;
  return `no ${attribute}: ${action === "deny" ? "denied" : `counted by ${tried.key}`} (missing = "${action}")`;
}

function policyCard(tried, values) {
  const button = (name, text, danger) => el("button", { class: danger ? "button slim danger" : "button slim", type: "button", text, "aria-label": `${text.replace("…", "")} under ${tried.policy}`, on: { click: () => open(name, tried.policy, keyOf(tried, values)) } });
  const head = el("div", { class: "head" }, el("h2", { text: tried.policy }), el("span", { class: "fine", text: counted(tried), title: tried.fingerprint && `shown as ${tried.fingerprint}` }), tried.shadow ? el("span", { class: "tag shadow", text: "shadow" }) : null, el("div", { class: "buttons" }, button("grant", "Grant…"), button("override", "Override…"), button("reset", "Reset…"), button("ban", "Ban…", true)));
  return el("div", { class: "card" }, head, ...tried.limits.map(level));
}

/** The typed values that belong to the key of a policy. */
function keyOf(tried, values) {
  const key = policies.find((one) => one.policy === tried.policy)?.by ?? [];
  const by = tried.missing ? [...key, "ip"] : key;
  return Object.fromEntries(by.filter((name) => values[name]).map((name) => [name, values[name]]));
}

function level(limit) {
  const counted = limit.capacity !== null && limit.remaining !== null;
  const left = counted ? `${exact(limit.remaining)} of ${exact(limit.capacity)} left, costs ${exact(limit.cost)}` : plural(limit.cost, "unit");
  const wait = limit.retry_after_ms === null ? "" : `, allowed in ${span(limit.retry_after_ms)}`;
  const fill = el("div", { class: "fill" });
  const used = counted ? 1 - limit.remaining / Math.max(1, limit.capacity) : 0;
  fill.style.width = `${used * 100}%`;
  fill.classList.toggle("high", limit.outcome === "denied" || limit.outcome === "never");
  fill.classList.toggle("shadow", limit.outcome === "shadow_denied");
  const kind = limit.outcome.replace("_denied", "");
  return el("div", { class: "level" }, el("span", { class: "limit", text: limit.limit }), el("span", { class: `tag ${kind}`, text: limit.outcome.replaceAll("_", " ") }), el("div", { class: "track", "aria-hidden": "true" }, fill), el("span", { text: left + wait }));
}
