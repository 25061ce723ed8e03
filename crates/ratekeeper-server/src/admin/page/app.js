// The page: which view is shown, what it is told, and whether the server is there.

import { $, say } from "./dom.js";
import { Stream } from "./api.js";
import { date, span } from "./format.js";
import { History } from "./history.js";
import * as act from "./act.js";
import { overview } from "./overview.js";
import { policies } from "./policies.js";
import { keys } from "./keys.js";
import { shadow } from "./shadow.js";
import { pressure } from "./pressure.js";
import { explain } from "./explain.js";
import { holds } from "./holds.js";
import { audit } from "./audit.js";
import { playground } from "./playground.js";

/** By the name in the address. A view is told each status while it is shown, and `enter`ed when it comes to be. */
const VIEWS = { overview, policies, keys, shadow, pressure, try: explain, holds, audit, playground };

const history = new History();
let status = null;
let shown = null;

function route() {
  const wanted = location.hash.slice(1);
  if (wanted === "main") return;
  const name = Object.hasOwn(VIEWS, wanted) ? wanted : "overview";
  if (name === shown) return;
  const first = shown === null;
  shown = name;
  for (const view of Object.keys(VIEWS)) $(`view-${view}`).hidden = view !== name;
  for (const link of $("nav").querySelectorAll("a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const title = $(`h-${name}`).textContent;
  document.title = `${title} · ratekeeper`;
  VIEWS[name].enter?.(status, history);
  if (status) VIEWS[name].update?.(status, history);
  // Who chose a view by the keyboard goes on reading there.
  if (!first) {
    scrollTo(0, 0);
    $("main").focus({ preventScroll: true });
  }
}

function told(next) {
  status = next;
  history.push(next);
  act.know(next);
  say($("version"), `v${next.version}`);
  say($("uptime"), `up ${span(next.uptime_ms)}`, `since ${date(next.now_ms - next.uptime_ms)}`);
  $("nav-pressure").hidden = !next.pressure;
  $("nav-holds").hidden = next.overrides === 0;
  say($("nav-holds"), next.overrides);
  VIEWS[shown].update?.(next, history);
}

let lostAt = null;

function linked(live) {
  if (live) lostAt = null;
  else lostAt ??= Date.now();
  $("link").dataset.is = live ? "live" : "lost";
  say($("link-text"), live ? "Live" : "Not connected");
  $("banner").hidden = live;
  // Written once: it is read out when it changes.
  if (!live) say($("banner-text"), `The connection to the server broke off at ${date(lostAt)}. What is shown is from before; trying again.`);
}

const THEMES = ["system", "light", "dark"];

function theme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  $("theme").textContent = `Theme: ${name}`;
  try {
    localStorage.setItem("theme", name);
  } catch {
    // Where nothing may be kept, it holds for this visit.
  }
}

function keptTheme() {
  try {
    return localStorage.getItem("theme");
  } catch {
    return null;
  }
}

theme(THEMES.includes(keptTheme()) ? keptTheme() : "system");
$("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme ?? "system";
  theme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
});
act.prepare(() => VIEWS[shown].enter?.(status, history));
addEventListener("hashchange", route);
route();
const stream = new Stream(told, linked);
$("again").addEventListener("click", () => stream.open());
