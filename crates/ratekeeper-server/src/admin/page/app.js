// The page: the current view, its updates, the connection and the theme.

import { $, setText } from "./dom.js";
import { Stream } from "./api.js";
import { date, span } from "./format.js";
import { History } from "./history.js";
import * as act from "./act.js";
import { overview } from "./overview.js";
import { policies } from "./policies.js";
import { keys } from "./keys.js";
import { shadow } from "./shadow.js";
import { overload } from "./overload.js";
import { explain } from "./explain.js";
import { overrides } from "./overrides.js";
import { audit } from "./audit.js";
import { playground } from "./playground.js";

/** Views by their name in the address. The current view gets `update` with each status, and `enter` when it opens. */
const VIEWS = { overview, policies, keys, shadow, overload, try: explain, overrides, audit, playground };

const history = new History();
let status = null;
let current = null;

function route() {
  const wanted = location.hash.slice(1);
  if (wanted === "main") return;
  const name = Object.hasOwn(VIEWS, wanted) ? wanted : "overview";
  if (name === current) return;
  const first = current === null;
  current = name;
  for (const view of Object.keys(VIEWS)) $(`view-${view}`).hidden = view !== name;
  for (const link of $("nav").querySelectorAll("a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const title = $(`h-${name}`).textContent;
  document.title = `${title} · ratekeeper`;
  VIEWS[name].enter?.(status, history);
  if (status) VIEWS[name].update?.(status, history);
  // Keyboard users continue in the view they chose.
  if (!first) {
    scrollTo(0, 0);
    $("main").focus({ preventScroll: true });
  }
}

function onStatus(next) {
  status = next;
  history.push(next);
  act.setPolicies(next);
  setText($("version"), `v${next.version}`);
  setText($("uptime"), `up ${span(next.uptime_ms)}`, `since ${date(next.now_ms - next.uptime_ms)}`);
  $("nav-overload").hidden = !next.overload;
  $("nav-overrides").hidden = next.overrides === 0;
  setText($("nav-overrides"), next.overrides);
  VIEWS[current].update?.(next, history);
}

let lostAt = null;

function onConnection(live) {
  if (live) lostAt = null;
  else lostAt ??= Date.now();
  $("link").dataset.is = live ? "live" : "lost";
  setText($("link-text"), live ? "Live" : "Not connected");
  $("banner").hidden = live;
  // Written once: screen readers announce each change.
  if (!live) setText($("banner-text"), `Connection to the server lost at ${date(lostAt)}. The numbers are from before; reconnecting.`);
}

const THEMES = ["system", "light", "dark"];

function theme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  $("theme").textContent = `Theme: ${name}`;
  try {
    localStorage.setItem("theme", name);
  } catch {
    // Without storage the choice lasts for this visit.
  }
}

function storedTheme() {
  try {
    return localStorage.getItem("theme");
  } catch {
    return null;
  }
}

theme(THEMES.includes(storedTheme()) ? storedTheme() : "system");
$("theme").addEventListener("click", () => {
  const active = document.documentElement.dataset.theme ?? "system";
  theme(THEMES[(THEMES.indexOf(active) + 1) % THEMES.length]);
});
act.prepare(() => VIEWS[current].enter?.(status, history));
addEventListener("hashchange", route);
route();
const stream = new Stream(onStatus, onConnection);
$("reconnect").addEventListener("click", () => stream.open());
