// Try a subject: what each policy makes of it now, and what can be done about it.

import { $, el, keyed } from "./dom.js";
import { post } from "./api.js";
import { exact, plural, span } from "./format.js";
import { subjectOf, words } from "./subject.js";
import { open } from "./act.js";

export const explain = { enter, update };

const USUAL = { ip: "203.0.113.7", method: "GET", path: "/api/x", user: "42" };
let known = [];
let ready = false;
let asked = false;

function enter() {
  if (!ready) {
    ready = true;
    $("try").addEventListener("submit", (event) => {
      event.preventDefault();
      run();
    });
  }
  // After a ban or a reset it is told again.
  if (asked) run();
}

/** A field for each thing that a policy counts by, besides what every request has. */
function update(status) {
  known = status.policies;
  const names = [...new Set(["ip", "method", "path", ...known.flatMap((policy) => policy.by)])];
  keyed($("try-fields"), names, (name) => name, (name) => {
    const input = el("input", { name, "data-name": name, class: "mono", placeholder: USUAL[name] ?? "", autocomplete: "off", spellcheck: "false" });
    return el("label", { class: "field", text: name }, input);
  });
}

const pairs = () => [...$("try-fields").querySelectorAll("input")].map((input) => [input.dataset.name, input.value.trim()]);

async function run() {
  $("try-wrong").textContent = "";
  try {
    const said = [...pairs(), ...words($("try-more").value)];
    const cost = Number($("try-cost").value || 1);
    const told = await post("/admin/explain", { subject: subjectOf(said), cost });
    asked = true;
    show(told, Object.fromEntries(said));
  } catch (refusal) {
    $("try-wrong").textContent = refusal.message;
    $("try-told").replaceChildren();
  }
}

const WHY = {
  no_policy: "no policy applies",
  allow_list: "it is on the allow list, so no limit is asked",
  deny_list: "it is on the deny list",
  ban: "it is banned",
  missing_attribute: "it lacks an attribute of the key",
  off: "limits are switched off",
  closed: "the store does not answer",
};

function show(told, values) {
  let said = "Allowed";
  if (told.allowed && told.delay_ms > 0) said = `Allowed after ${span(told.delay_ms)}`;
  if (!told.allowed) said = told.policy ? `Denied by ${told.policy}` : "Denied";
  const more = [!told.allowed && `status ${told.status}`, WHY[told.reason], told.never && "waiting will not help", !told.allowed && !told.never && told.retry_after_ms !== null && `admitted in ${span(told.retry_after_ms)} if nobody else comes`];
  const verdict = el("div", { class: told.allowed ? "card verdict" : "card verdict no" }, el("strong", { text: said }), el("span", { class: "fine", text: more.filter(Boolean).join("; ") }));
  const applies = told.policies.filter((tried) => tried.applies);
  const apart = told.policies.filter((tried) => !tried.applies);
  const aside = apart.map((tried) => el("p", { class: "card apart" }, el("strong", { text: tried.policy }), ` does not apply: ${tried.reason}`));
  $("try-told").replaceChildren(verdict, el("div", { class: "tried" }, ...applies.map((tried) => standing(tried, values)), ...aside));
}

function counted(tried) {
  if (!tried.missing) return tried.key ? `counted by ${tried.key}` : "one bucket for all";
  const { attribute, action } = tried.missing;
  return `no ${attribute}: ${action === "deny" ? "denied" : `counted by ${tried.key}`} (missing = "${action}")`;
}

function standing(tried, values) {
  const button = (name, text, danger) => el("button", { class: danger ? "button slim danger" : "button slim", type: "button", text, "aria-label": `${text.replace("…", "")} under ${tried.policy}`, on: { click: () => open(name, tried.policy, pick(tried, values)) } });
  const head = el("div", { class: "head" }, el("h2", { text: tried.policy }), el("span", { class: "fine", text: counted(tried), title: tried.fingerprint && `shown as ${tried.fingerprint}` }), tried.shadow ? el("span", { class: "tag shadow", text: "only watching" }) : null, el("div", { class: "buttons" }, button("grant", "Grant…"), button("override", "Override…"), button("reset", "Reset…"), button("ban", "Ban…", true)));
  return el("div", { class: "card" }, head, ...tried.limits.map(level));
}

/** What a policy counts by, of what was typed. */
function pick(tried, values) {
  const key = known.find((one) => one.policy === tried.policy)?.by ?? [];
  const by = tried.missing ? [...key, "ip"] : key;
  return Object.fromEntries(by.filter((name) => values[name]).map((name) => [name, values[name]]));
}

function level(limit) {
  const counted = limit.capacity !== null && limit.remaining !== null;
  const left = counted ? `${exact(limit.remaining)} of ${exact(limit.capacity)} left, costs ${exact(limit.cost)}` : plural(limit.cost, "unit");
  const wait = limit.retry_after_ms === null ? "" : `, admits in ${span(limit.retry_after_ms)}`;
  const fill = el("div", { class: "fill" });
  const used = counted ? 1 - limit.remaining / Math.max(1, limit.capacity) : 0;
  fill.style.width = `${used * 100}%`;
  fill.classList.toggle("high", limit.outcome === "denied" || limit.outcome === "never");
  fill.classList.toggle("shadow", limit.outcome === "shadow_denied");
  const kind = limit.outcome.replace("_denied", "");
  return el("div", { class: "level" }, el("span", { class: "limit", text: limit.limit }), el("span", { class: `tag ${kind}`, text: limit.outcome.replaceAll("_", " ") }), el("div", { class: "track", "aria-hidden": "true" }, fill), el("span", { text: left + wait }));
}
