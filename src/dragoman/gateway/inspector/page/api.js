/** Requests to the inspector. Each needs the cookie and the token of the session. */
import { queryOf } from "./route.js";
import { render, state } from "./state.js";

const TOKEN = "inspector-token";

/** What went wrong, as the server reports it; the status is 0 if there was no response. */
export class ApiError extends Error {
  /** @param {number} status @param {string} message */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** @param {string} url @param {RequestInit} options */
async function send(url, options) {
  const headers = { ...options.headers, "x-inspector-token": localStorage.getItem(TOKEN) ?? "" };
  const response = await fetch(url, { ...options, headers }).catch((error) => {
    if (isAborted(error)) throw error;
    throw new ApiError(0, "The inspector does not answer. Is `dragoman inspect` still running?");
  });
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({}));
  if (response.status === 401) {
    state.session = "none";
    render("frame");
  }
  throw new ApiError(response.status, error ?? `The inspector answered ${response.status}.`);
}

/**
 * Get a response as it is: bytes, or a stream.
 *
 * @param {string} path below /api/
 * @param {Params} [query]
 * @param {AbortSignal} [signal]
 */
export function open(path, query = {}, signal = undefined) {
  return send(`/api/${path}${queryOf(query)}`, { signal });
}

/** @param {string} path @param {Params} [query] @param {AbortSignal} [signal] */
export async function get(path, query, signal) {
  return (await open(path, query, signal)).json();
}

/** @param {string} path @param {object} body @param {AbortSignal} [signal] */
export async function post(path, body, signal) {
  return (
    await send(`/api/${path}`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
      signal,
    })
  ).json();
}

/** @param {string} id @param {string} [what] */
export function requestPath(id, what) {
  return `requests/${encodeURIComponent(id)}${what ? `/${what}` : ""}`;
}

/** Open a session if there is a link in the address, from which it is removed. */
export async function openSession() {
  const link = new URLSearchParams(location.hash.slice(1)).get("link");
  if (!link) return;
  history.replaceState(null, "", "#/requests");
  localStorage.setItem(TOKEN, (await post("session", { link })).token);
}

export async function endSession() {
  await post("session/end", {});
  localStorage.removeItem(TOKEN);
  state.session = "none";
  render("frame");
}

/** Whether an error is that of a request that was given up. @param {unknown} error */
export function isAborted(error) {
  return error instanceof DOMException && error.name === "AbortError";
}

/** @param {unknown} error */
export function reason(error) {
  return error instanceof Error ? error.message : String(error);
}
