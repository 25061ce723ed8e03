// What changes something: a dialog that says what is about to happen, and does it only when told to.

import { $, el } from "./dom.js";
import { hasToken, keepToken, post } from "./api.js";
import { subjectOf } from "./subject.js";

const LASTS = { name: "for", label: "For how long", value: "1h", placeholder: "1h" };
const REASON = { name: "reason", label: "Reason", placeholder: "Why, for whoever reads this later", whole: true };

/** What can be done: the fields it has besides policy and subject, and what it says it will do. */
const ACTIONS = {
  ban: {
    title: "Ban a key", button: "Ban this key", danger: true, fields: [LASTS, REASON],
    says: (who, { for: lasts }) => `Every request of ${who} is turned away for ${lasts || "…"}.`,
    done: (who) => `Banned ${who}.`,
  },
  override: {
    title: "Give a key other limits", button: "Set these limits",
    fields: [{ name: "limits", label: "Limits, with commas between them", placeholder: "200/min burst 50", whole: true, mono: true }, LASTS, REASON],
    says: (who, { for: lasts, limits }) => `${who} has ${limits || "…"} instead of its own limits for ${lasts || "…"}.`,
    done: (who) => `Other limits hold for ${who}.`,
  },
  grant: {
    title: "Grant tokens", button: "Grant them", fields: [{ name: "tokens", label: "Tokens", type: "number", value: "10" }],
    says: (who, { tokens }) => `${who} gets ${tokens || "…"} tokens back, as far as there is room for them.`,
    done: (who, { tokens }) => `Granted ${tokens} to ${who}.`,
  },
  reset: {
    title: "Reset a key", button: "Reset this key", danger: true, fields: [],
    says: (who) => `Whatever was said of ${who} is lifted, bans and penalties too, and its limits are full again.`,
    done: (who) => `Reset ${who}.`,
  },
  lift: {
    title: "Lift a ban or an override", button: "Lift it", fields: [],
    says: (who) => `The ban or the limits of its own that ${who} has end now.`,
    done: (who) => `Lifted what was said of ${who}.`,
  },
  reload: {
    title: "Reload the configuration", button: "Reload", fields: [], alone: true,
    says: () => "The file is read again. If something is wrong with it, the configuration of now stays in force.",
    done: (_, __, answer) => `Reloaded: ${answer?.policies ?? 0} policies${answer?.warnings?.length ? `, ${answer.warnings.join("; ")}` : ""}.`,
  },
};

let now = null;
let policies = [];
let afterwards = () => {};

/** `done` is called after something was changed. */
export function prepare(done) {
  afterwards = done;
  $("act-cancel").addEventListener("click", () => $("act").close());
  $("act-form").addEventListener("submit", submit);
  $("act-form").addEventListener("input", preview);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-act]");
    if (button) open(button.dataset.act);
  });
}

export const know = (status) => (policies = status.policies);

/** Opens the dialog, about a policy and a key if they are known. */
export function open(name, policy, values = {}) {
  const action = ACTIONS[name];
  now = { name, action, values: { ...values } };
  $("act-title").textContent = action.title;
  $("act-do").textContent = action.button;
  $("act-do").className = `button ${action.danger ? "danger sure" : "primary"}`;
  $("act-do").disabled = false;
  $("act-wrong").textContent = "";
  $("act-token").value = "";
  $("act-token").placeholder = hasToken() ? "The one given before" : "";
  fill(policy ?? policies[0]?.policy);
  $("act").showModal();
  const empty = [...$("act-fields").querySelectorAll("input")].find((input) => !input.value);
  (empty ?? $("act-do")).focus();
}

function fill(policy) {
  const { action, values } = now;
  const fields = [];
  if (!action.alone) {
    const choose = el("select", { id: "act-policy", on: { change: (event) => (remember(), fill(event.target.value), $("act-policy").focus()) } });
    choose.append(...policies.map((known) => el("option", { text: known.policy, value: known.policy, selected: known.policy === policy })));
    fields.push(el("label", { class: "field", text: "Policy" }, choose));
    const by = policies.find((known) => known.policy === policy)?.by ?? [];
    fields.push(...by.map((name) => field({ name, label: name, value: values[name], mono: true, part: "subject" })));
  }
  fields.push(...action.fields.map((one) => field({ ...one, value: values[one.name] ?? one.value, part: "field" })));
  $("act-fields").replaceChildren(...fields);
  preview();
}

function field({ name, label, value, placeholder, type, whole, mono, part }) {
  const number = type === "number" ? { min: 1, inputmode: "numeric" } : {};
  const input = el("input", { type: type ?? "text", placeholder, class: mono && "mono", name, "data-name": name, "data-part": part, autocomplete: "off", spellcheck: "false", ...number });
  input.value = value ?? "";
  return el("label", { class: whole ? "field whole" : "field", text: label }, input);
}

function said(part) {
  const inputs = [...$("act-fields").querySelectorAll(`[data-part="${part}"]`)];
  return Object.fromEntries(inputs.map((input) => [input.dataset.name, input.value.trim()]));
}

/** Keeps what was typed when another policy is chosen. */
function remember() {
  Object.assign(now.values, said("subject"), said("field"));
}

function who() {
  const key = Object.entries(said("subject")).map(([name, value]) => `${name}=${value || "…"}`).join(" ");
  return `${key || "everyone (one bucket for all)"} under ${$("act-policy")?.value ?? "no policy"}`;
}

function preview() {
  $("act-says").textContent = now.action.says(now.action.alone ? "" : who(), said("field"));
}

async function submit(event) {
  event.preventDefault();
  const { name, action } = now;
  const typed = $("act-token").value;
  if (typed) keepToken(typed);
  const fields = said("field");
  const body = action.alone ? {} : { policy: $("act-policy")?.value ?? "", subject: subjectOf(Object.entries(said("subject"))) };
  for (const [field, value] of Object.entries(fields)) {
    if (field === "limits") body.limits = value.split(",").map((limit) => limit.trim()).filter(Boolean);
    else if (field === "tokens") body.tokens = Number(value);
    else if (value) body[field] = value;
  }
  $("act-do").disabled = true;
  $("act-wrong").textContent = "";
  try {
    const told = action.alone ? "" : who();
    const answer = await post(`/admin/${name}`, body);
    $("act").close();
    toast(action.done(told, fields, answer));
    afterwards();
  } catch (refusal) {
    $("act-wrong").textContent = refusal.message;
    if (refusal.status === 401 || refusal.status === 403) {
      $("act-token-box").open = true;
      $("act-token").focus();
    }
  } finally {
    $("act-do").disabled = false;
  }
}

export function toast(text) {
  const shown = el("p", { class: "toast", text });
  $("toasts").append(shown);
  setTimeout(() => shown.remove(), 8000);
}
