// The overview: all traffic, traffic by policy, health.

import { $, el, keyed, setText } from "./dom.js";
import { TimeChart, spark } from "./chart.js";
import { count, exact, plural, rate, share, shareOf, time } from "./format.js";
import { allowedOf } from "./history.js";
import { showTop } from "./keys.js";

let chart = null;
let seconds = 300;
let ticks = 0;
let latest = null;

export const overview = { enter, update };

function enter(status, history) {
  if (!chart) {
    chart = new TimeChart($("traffic"));
    $("span").addEventListener("change", (event) => {
      seconds = Number(event.target.value);
      chart.show(history.since(seconds * 1000), seconds * 1000);
      if (latest) byPolicy(latest, history);
    });
  }
  ticks = 0;
}

function update(status, history) {
  const { totals, store } = status;
  latest = status;
  const newest = history.newest;
  const minute = history.sums(60_000);
  const denied = shareOf(minute.denied, minute.allowed + minute.denied);
  setText($("kpi-rate"), newest ? rate(newest.allowed + newest.denied) : "–");
  setText($("kpi-requests"), `${count(totals.requests)} since the start`, exact(totals.requests));
  setText($("kpi-share"), share(denied));
  setText($("kpi-share-ever"), `${share(shareOf(totals.denied, totals.requests))} since the start`);
  setText($("kpi-allowed"), count(totals.allowed), exact(totals.allowed));
  setText($("kpi-denied"), count(totals.denied), exact(totals.denied));
  setText($("kpi-keys"), store.keys === null ? "–" : count(store.keys), store.keys === null ? "The store cannot count keys" : exact(store.keys));
  setText($("kpi-waiting"), `${plural(status.waiting, "request")} waiting`);

  const points = history.since(seconds * 1000);
  chart.show(points, seconds * 1000);
  if (newest) setText($("traffic-summary"), `${rate(newest.allowed)} allowed and ${rate(newest.denied)} denied a second now; ${share(denied)} denied in the last minute.`);
  if ($("minute").closest("details").open) minuteTable(history);
  byPolicy(status, history);
  health(status);
  if (ticks++ % 2 === 0) showTop([$("short-most-active"), $("short-denied")], 6, status);
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
    const all = allowedOf(policy) + policy.denied;
    setText(allowed, rate(last.allowed), `${exact(allowedOf(policy))} allowed since the start`);
    setText(denied, rate(last.denied), `${exact(policy.denied)} denied since the start`);
    setText(part, share(shareOf(policy.denied, all)), `${exact(policy.denied)} of ${exact(all)} since the start`);
  });
}

function health(status) {
  const { store, reloads, upstreams } = status;
  const errors = Object.entries(store.errors).filter(([, number]) => number > 0);
  const lines = [
    ["Serving", status.serving, status.ready ? ["ready", "ok"] : ["not ready", "denied"]],
    ["Store", store.kind, store.fallback_active ? ["unavailable", "denied"] : ["available", "ok"]],
    ...errors.map(([kind, number]) => [`Store: ${kind}`, plural(number, "error"), null]),
    ...upstreams.map(({ upstream, healthy, reason }) => [upstream, reason ?? "", healthy ? ["healthy", "ok"] : ["unhealthy", "denied"]]),
    ["Configuration", `${plural(reloads.succeeded, "reload")}${reloads.rejected ? `, ${exact(reloads.rejected)} rejected` : ""}`, reloads.stale ? ["stale", "denied"] : ["in force", "ok"]],
    ["Bans and overrides", exact(status.overrides), null],
  ];
  const problems = [store.error, store.other_limits, reloads.stale && "The file has errors; the previous configuration stays in force, see the log."].filter(Boolean);
  keyed($("health"), [...lines.map(([term]) => term), ...problems.map((text) => `! ${text}`)], (term) => term, (term) => {
    if (term.startsWith("! ")) return el("div", {}, el("dt", { class: "visually-hidden", text: "Problem" }), el("dd", { class: "problem", text: term.slice(2) }));
    return el("div", {}, el("dt", { text: term, class: term.includes("://") && "mono" }), el("dd", {}, el("span"), " ", el("span")));
  });
  [...$("health").children].slice(0, lines.length).forEach((line, at) => {
    const [text, tag] = line.lastElementChild.children;
    setText(text, lines[at][1]);
    setText(tag, lines[at][2]?.[0] ?? "");
    tag.className = lines[at][2] ? `tag ${lines[at][2][1]}` : "";
  });
}
