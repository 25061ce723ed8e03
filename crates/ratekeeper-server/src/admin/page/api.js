// What the admin listener is asked. The token lives in this module's memory and nowhere else.

let token = "";

export const keepToken = (text) => (token = text.trim());
export const hasToken = () => token !== "";

/** Why a request came to nothing, in a sentence. */
export class Refusal extends Error {
  constructor(detail, status) {
    super(detail);
    this.status = status;
  }
}

export const get = (path) => ask(path, { method: "GET" });

export const post = (path, body) =>
  ask(path, { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } });

async function ask(path, init) {
  const headers = { ...init.headers };
  // Reads need none, so only what changes something carries it.
  if (token && init.method === "POST") headers.authorization = `Bearer ${token}`;
  let answer;
  try {
    answer = await fetch(path, { ...init, headers, cache: "no-store", redirect: "error" });
  } catch {
    throw new Refusal("The server cannot be reached; nothing was done as far as this page knows.", 0);
  }
  const text = await answer.text();
  let said = null;
  try {
    said = text ? JSON.parse(text) : null;
  } catch {
    if (answer.ok) throw new Refusal(`${path} answered with something that is not JSON.`, answer.status);
  }
  if (!answer.ok) throw new Refusal(said?.detail ?? `${path} answered ${answer.status}.`, answer.status);
  return said;
}

/** Follows the stream of figures and finds it again when it breaks off. */
export class Stream {
  #source = null;
  #timer = 0;
  #tries = 0;

  /** `told` gets each status; `linked` whether the stream is there. */
  constructor(told, linked) {
    this.told = told;
    this.linked = linked;
    this.open();
  }

  open() {
    clearTimeout(this.#timer);
    this.#source?.close();
    const source = new EventSource("/admin/stream");
    this.#source = source;
    source.addEventListener("status", (event) => {
      this.#tries = 0;
      this.linked(true);
      this.told(JSON.parse(event.data));
    });
    // The browser's own retries end for good on some errors, so it is always this that tries again.
    source.addEventListener("error", () => {
      source.close();
      this.#timer = setTimeout(() => this.open(), Math.min(5000, 500 * 2 ** this.#tries++));
      this.#without();
    });
  }

  /** Where only the stream is refused, because as many listen as may, figures come one by one. */
  async #without() {
    try {
      const status = await get("/admin/status");
      this.linked(true);
      this.told(status);
    } catch {
      this.linked(false);
    }
  }
}
