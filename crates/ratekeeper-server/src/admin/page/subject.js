// Subjects: from fields and text to the JSON of the API, and back from a key.

/** The prefix of header attributes. */
const HEADER = "header:";

/** Parses `name=value` pairs separated by spaces, values with spaces in double quotes, like `ratekeeper explain --subject`. */
export function words(text) {
  const found = [];
  let rest = text.trim();
  while (rest) {
    const match = /^([^\s=]+)=(?:"([^"]*)"|(\S*))\s*/.exec(rest);
    if (!match || (match[2] === undefined && match[3].startsWith('"'))) throw new Error(`“${rest.split(/\s/)[0]}” is not name=value, as in tenant=acme.`);
    found.push([match[1], match[2] ?? match[3]]);
    rest = rest.slice(match[0].length);
  }
  return found;
}

/** A subject from pairs of name and value, without empty values. */
export function subjectOf(pairs) {
  const [subject, headers] = [{}, {}];
  for (const [name, value] of pairs) {
    if (value === "") continue;
    if (name.startsWith(HEADER)) (headers[name.slice(HEADER.length)] ??= []).push(value);
    else subject[name] = value;
  }
  if (Object.keys(headers).length > 0) subject.headers = headers;
  return subject;
}

/** The values that name a key in a request: as shown, else its fingerprints; null if neither is known. */
export function keyValues(by, shown) {
  return fromKey(by, shown.key) ?? (shown.fingerprint ? fromKey(by, shown.fingerprint) : null);
}

const FINGERPRINT = /^#[0-9a-f]{16}$/;

/** The values of a key by attribute; null if one is shortened or escaped. */
function fromKey(by, key) {
  const values = {};
  let rest = key;
  for (let at = 0; at < by.length; at++) {
    const begin = `${by[at]}=`;
    if (!rest.startsWith(begin)) return null;
    rest = rest.slice(begin.length);
    const next = at + 1 < by.length ? rest.indexOf(` ${by[at + 1]}=`) : rest.length;
    if (next < 0) return null;
    const value = rest.slice(0, next);
    if ((value.startsWith("#") && !FINGERPRINT.test(value)) || value.endsWith("…") || value.includes("\\")) return null;
    values[by[at]] = value;
    rest = rest.slice(next + 1);
  }
  return values;
}
