// The first view: all traffic, by policy, and whether everything is well.

import { $, el, keyed, say } from "./dom.js";
import { TimeChart, spark } from "./chart.js";
import { count, exact, plural, rate, share, shareOf, time } from "./format.js";
import { passed } from "./history.js";
import { showTop } from "./keys.js";

let chart = null;
let seconds = 300;
let ticks = 0;
let shown = null;

export const overview = { enter, update };

function enter(status, history) {
  if (!chart) {
    chart = new TimeChart($("traffic"));
    $("span").addEventListener("change", (event) => {
      seconds = Number(event.target.value);
      chart.show(history.since(seconds * 1000), seconds * 1000);
      if (shown) byPolicy(shown, history);
    });
  }
  ticks = 0;
}

function update(status, history) {
  const { totals, store } = status;
  shown = status;
  const newest = history.newest;
  const minute = history.sums(60_000);
  const denied = shareOf(minute.denied, minute.allowed + minute.denied);
  say($("kpi-rate"), newest ? rate(newest.allowed + newest.denied) : "–");
  say($("kpi-requests"), `${count(totals.requests)} since the start`, exact(totals.requests));
  say($("kpi-share"), share(denied));
  say($("kpi-share-ever"), `${share(shareOf(totals.blocked, totals.requests))} since the start`);
  say($("kpi-allowed"), count(totals.allowed), exact(totals.allowed));
  say($("kpi-denied"), count(totals.blocked), exact(totals.blocked));
  say($("kpi-keys"), store.keys === null ? "–" : count(store.keys), store.keys === null ? "The store cannot count them" : exact(store.keys));
  say($("kpi-waiting"), `${plural(status.waiting, "request")} waiting`);

  const points = history.since(seconds * 1000);
  chart.show(points, seconds * 1000);
  if (newest) say($("traffic-said"), `${rate(newest.allowed)} allowed and ${rate(newest.denied)} denied a second now; ${share(denied)} denied in the last minute.`);
  if ($("minute").closest("details").open) minuteTable(history);
  byPolicy(status, history);
  health(status);
  if (ticks++ % 2 === 0) showTop([$("short-heaviest"), $("short-denied")], 6, status);
}

function minuteTable(history) {
  const points = history.since(60_000).toReversed();
  keyed($("minute"), points, (point) => String(point.at), ({ at, allowed, denied }) => {
    const cells = [rate(allowed), rate(denied), share(shareOf(denied, allowed + denied))];
    return el("tr", {}, el("th", { scope: "row", text: time(at) }), ...cells.map((text) => el("td", { class: "n", text })));
  });
}

function byPolicy(status, history) {
  $("no-policies").hidden = status.policies.length > 0;
  keyed($("by-policy"), status.policies, (policy) => policy.policy, ({ policy }) => {
    const name = el("th", { scope: "row" }, el("span", { text: policy }), " ", el("span", { class: "tag shadow", text: "shadow", hidden: true }));
    return el("tr", {}, name, el("td", {}, el("span", { class: "chart spark" })), ...[0, 1, 2].map(() => el("td", { class: "n" })));
  }, (row, policy) => {
    const [name, small, allowed, denied, part] = row.children;
    name.lastElementChild.hidden = policy.mode !== "shadow";
    const millis = Math.min(seconds, 300) * 1000;
    const points = history.of(policy.policy, millis);
    const last = points.at(-1) ?? { allowed: 0, denied: 0 };
    spark(small.firstElementChild, points, millis);
    const all = passed(policy) + policy.denied;
    say(allowed, rate(last.allowed), `${exact(passed(policy))} passed since the start`);
    say(denied, rate(last.denied), `${exact(policy.denied)} denied since the start`);
    say(part, share(shareOf(policy.denied, all)), `${exact(policy.denied)} of ${exact(all)} since the start`);
  });
}

function health(status) {
  const { store, reloads, upstreams } = status;
  const errors = Object.entries(store.errors).filter(([, many]) => many > 0);
  const lines = [
    ["Serving", status.serving, status.ready ? ["ready", "well"] : ["not ready", "denied"]],
    ["Store", store.kind, store.fallback_active ? ["falling back", "denied"] : ["answering", "well"]],
    ...errors.map(([kind, many]) => [`Store: ${kind}`, plural(many, "error"), null]),
    ...upstreams.map(({ upstream, healthy, reason }) => [upstream, reason ?? "", healthy ? ["healthy", "well"] : ["unhealthy", "denied"]]),
    ["Configuration", `${plural(reloads.taken, "reload")}${reloads.refused ? `, ${exact(reloads.refused)} refused` : ""}`, reloads.stale ? ["stale", "denied"] : ["in force", "well"]],
    ["Bans and overrides", exact(status.overrides), null],
  ];
  const trouble = [store.trouble, store.other_limits, reloads.stale && "The file is wrong, so the configuration from before is in force; the log says what is wrong with it."].filter(Boolean);
  keyed($("health"), [...lines.map(([term]) => term), ...trouble.map((text) => `! ${text}`)], (term) => term, (term) => {
    if (term.startsWith("! ")) return el("div", {}, el("dt", { class: "unseen", text: "Trouble" }), el("dd", { class: "trouble", text: term.slice(2) }));
    return el("div", {}, el("dt", { text: term, class: term.includes("://") && "mono" }), el("dd", {}, el("span"), " ", el("span")));
  });
  [...$("health").children].slice(0, lines.length).forEach((line, at) => {
    const [text, tag] = line.lastElementChild.children;
    say(text, lines[at][1]);
    say(tag, lines[at][2]?.[0] ?? "");
    tag.className = lines[at][2] ? `tag ${lines[at][2][1]}` : "";
  });
}
