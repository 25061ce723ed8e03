// Requests to the admin listener. The token is kept in this module's memory only.

let token = "";

export const setToken = (text) => (token = text.trim());
export const hasToken = () => token !== "";

/** A failed request: its message and HTTP status, 0 without a response. */
export class ApiError extends Error {
  constructor(detail, status) {
    super(detail);
    this.status = status;
  }
}

export const get = (path) => request(path, { method: "GET" });

export const post = (path, body) =>
  request(path, { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } });

async function request(path, init) {
  const headers = { ...init.headers };
  // Reads need no token, so only POST carries it.
  if (token && init.method === "POST") headers.authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(path, { ...init, headers, cache: "no-store", redirect: "error" });
  } catch {
    throw new ApiError("Cannot reach the server; the change may not have been made.", 0);
  }
  const text = await response.text();
  let body = null;
  try {
    body = text ? JSON.parse(text) : null;
  } catch {
    if (response.ok) throw new ApiError(`The response to ${path} is not JSON.`, response.status);
  }
  if (!response.ok) throw new ApiError(body?.detail ?? `${path}: status ${response.status}.`, response.status);
  return body;
}

/** The status event stream; reconnects when it breaks. */
export class Stream {
  #source = null;
  #timer = 0;
  #attempts = 0;

  /** `onStatus` gets each status; `onConnection`, whether the server is reachable. */
  constructor(onStatus, onConnection) {
    this.onStatus = onStatus;
    this.onConnection = onConnection;
    this.open();
  }

  open() {
    clearTimeout(this.#timer);
    this.#source?.close();
    const source = new EventSource("/admin/stream");
    this.#source = source;
    source.addEventListener("status", (event) => {
      this.#attempts = 0;
      this.onConnection(true);
      this.onStatus(JSON.parse(event.data));
    });
    // Browsers stop retrying for good after some errors, so this code always retries itself.
    source.addEventListener("error", () => {
      source.close();
      this.#timer = setTimeout(() => this.open(), Math.min(5000, 500 * 2 ** this.#attempts++));
      this.#poll();
    });
  }

  /** Reads the status once, for when only the stream is rejected because the maximum is reached. */
  async #poll() {
    try {
      const status = await get("/admin/status");
      this.onConnection(true);
      this.onStatus(status);
    } catch {
      this.onConnection(false);
    }
  }
}
