// Numbers and times for display; titles and tables have the exact values.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export const exact = (count) => whole.format(count);

/** A count: abbreviated from 100,000 on. */
export const count = (number) => (number < 100_000 ? whole.format(number) : short.format(number));

/** A rate per second. */
export function rate(perSecond) {
  if (perSecond === 0) return "0";
  if (perSecond < 0.1) return "<0.1";
  return perSecond < 10 ? perSecond.toFixed(1) : count(perSecond);
}

/** A share from 0 to 1, in percent. */
export function share(part) {
  if (!Number.isFinite(part)) return "–";
  const percent = part * 100;
  if (percent > 0 && percent < 0.1) return "<0.1 %";
  if (percent > 99.9 && percent < 100) return ">99.9 %";
  return `${percent >= 10 || percent === 0 ? Math.round(percent * 10) / 10 : percent.toFixed(1)} %`;
}

export const shareOf = (part, all) => (all > 0 ? part / all : NaN);

const UNITS = [[86_400_000, "d"], [3_600_000, "h"], [60_000, "min"], [1_000, "s"]];

/** A duration in its two largest units. */
export function span(millis) {
  if (millis < 1000) return `${Math.ceil(millis)} ms`;
  const at = UNITS.findIndex(([unit]) => millis >= unit);
  const [unit, name] = UNITS[at];
  const rest = UNITS[at + 1] && Math.floor((millis % unit) / UNITS[at + 1][0]);
  return rest ? `${Math.floor(millis / unit)} ${name} ${rest} ${UNITS[at + 1][1]}` : `${Math.floor(millis / unit)} ${name}`;
}

const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const day = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

export const time = (millis) => clock.format(millis);
export const date = (millis) => day.format(millis);

export const plural = (number, one, more = `${one}s`) => `${exact(number)} ${number === 1 ? one : more}`;
