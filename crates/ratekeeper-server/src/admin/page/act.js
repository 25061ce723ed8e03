// The dialog for changes. It shows what will happen and acts only on confirmation.

import { $, el } from "./dom.js";
import { hasToken, setToken, post } from "./api.js";
import { subjectOf } from "./subject.js";

const DURATION = { name: "for", label: "Duration", value: "1h", placeholder: "1h" };
const REASON = { name: "reason", label: "Reason", placeholder: "Why (shown in lists and the audit log)", whole: true };

/** Actions: their fields besides policy and subject, a preview, and the message when done. */
const ACTIONS = {
  ban: {
    title: "Ban a key", button: "Ban key", danger: true, fields: [DURATION, REASON],
    preview: (key, { for: duration }) => `All requests of ${key} are denied for ${duration || "…"}.`,
    done: (key) => `Banned ${key}.`,
  },
  override: {
    title: "Override the limits of a key", button: "Set limits",
    fields: [{ name: "limits", label: "Limits, separated by commas", placeholder: "200/min burst 50", whole: true, mono: true }, DURATION, REASON],
    preview: (key, { for: duration, limits }) => `The limits of ${key} become ${limits || "…"} for ${duration || "…"}.`,
    done: (key) => `Limits of ${key} replaced.`,
  },
  grant: {
    title: "Grant tokens", button: "Grant tokens", fields: [{ name: "tokens", label: "Tokens", type: "number", value: "10" }],
    preview: (key, { tokens }) => `${key} gets ${tokens || "…"} tokens, up to its capacity.`,
    done: (key, { tokens }) => `Granted ${tokens} to ${key}.`,
  },
  reset: {
    title: "Reset a key", button: "Reset key", danger: true, fields: [],
    preview: (key) => `Ends bans, penalties and overrides of ${key} and refills its limits.`,
    done: (key) => `Reset ${key}.`,
  },
  lift: {
    title: "Lift a ban or override", button: "Lift", fields: [],
    preview: (key) => `Ends the ban or override of ${key} now.`,
    done: (key) => `Lifted the ban or override of ${key}.`,
  },
  reload: {
    title: "Reload the configuration", button: "Reload", fields: [], alone: true,
    preview: () => "Reads the file again. If it has errors, the current configuration stays in force.",
    done: (_, __, response) => `Reloaded: ${response?.policies ?? 0} policies${response?.warnings?.length ? `, ${response.warnings.join("; ")}` : ""}.`,
  },
};

let current = null;
let policies = [];
let onChange = () => {};

/** `changed` is called after each change. */
export function prepare(changed) {
  onChange = changed;
  $("act-cancel").addEventListener("click", () => $("act").close());
  $("act-form").addEventListener("submit", submit);
  $("act-form").addEventListener("input", preview);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-act]");
    if (button) open(button.dataset.act);
  });
}

export const setPolicies = (status) => (policies = status.policies);

/** Opens the dialog, for a policy and key if given. */
export function open(name, policy, values = {}) {
  const action = ACTIONS[name];
  current = { name, action, values: { ...values } };
  $("act-title").textContent = action.title;
  $("act-submit").textContent = action.button;
  $("act-submit").className = `button ${action.danger ? "danger sure" : "primary"}`;
  $("act-submit").disabled = false;
  $("act-error").textContent = "";
  $("act-token").value = "";
  $("act-token").placeholder = hasToken() ? "The token given before" : "";
  fill(policy ?? policies[0]?.policy);
  $("act").showModal();
  const empty = [...$("act-fields").querySelectorAll("input")].find((input) => !input.value);
  (empty ?? $("act-submit")).focus();
}

function fill(policy) {
  const { action, values } = current;
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

function values(part) {
  const inputs = [...$("act-fields").querySelectorAll(`[data-part="${part}"]`)];
  return Object.fromEntries(inputs.map((input) => [input.dataset.name, input.value.trim()]));
}

/** Keeps typed values when another policy is selected. */
function remember() {
  Object.assign(current.values, values("subject"), values("field"));
}

function keyText() {
  const key = Object.entries(values("subject")).map(([name, value]) => `${name}=${value || "…"}`).join(" ");
  return `${key || "all requests (one bucket)"} under ${$("act-policy")?.value ?? "no policy"}`;
}

function preview() {
  $("act-preview").textContent = current.action.preview(current.action.alone ? "" : keyText(), values("field"));
}

async function submit(event) {
  event.preventDefault();
  const { name, action } = current;
  const typed = $("act-token").value;
  if (typed) setToken(typed);
  const fields = values("field");
  const body = action.alone ? {} : { policy: $("act-policy")?.value ?? "", subject: subjectOf(Object.entries(values("subject"))) };
  for (const [field, value] of Object.entries(fields)) {
    if (field === "limits") body.limits = value.split(",").map((limit) => limit.trim()).filter(Boolean);
    else if (field === "tokens") body.tokens = Number(value);
    else if (value) body[field] = value;
  }
  $("act-submit").disabled = true;
  $("act-error").textContent = "";
  try {
    const key = action.alone ? "" : keyText();
    const response = await post(`/admin/${name}`, body);
    $("act").close();
    toast(action.done(key, fields, response));
    onChange();
  } catch (error) {
    $("act-error").textContent = error.message;
    if (error.status === 401 || error.status === 403) {
      $("act-token-box").open = true;
      $("act-token").focus();
    }
  } finally {
    $("act-submit").disabled = false;
  }
}

export function toast(text) {
  const node = el("p", { class: "toast", text });
  $("toasts").append(node);
  setTimeout(() => node.remove(), 8000);
}
