/** The stream of changes: rows, running requests, state. It connects again by itself, and gets what it has missed. */
import { ApiError, open } from "./api.js";
import { render, state } from "./state.js";

const SILENT = 15_000; // milliseconds after which a connection without even a comment counts as lost
let cursor = "";
let following = new AbortController();

/**
 * Follow the requests that match a filter, from a cursor on.
 *
 * @param {string} filter
 * @param {string} from
 * @param {Listener} listener
 */
export async function follow(filter, from, listener) {
  cursor = from;
  following.abort();
  const mine = (following = new AbortController());
  for (let wait = 250; !mine.signal.aborted; wait = Math.min(wait * 2, 4000)) {
    const attempt = new AbortController();
    mine.signal.addEventListener("abort", () => attempt.abort());
    try {
      const { body } = await open("live", { filter, cursor }, attempt.signal);
      wait = 250;
      setLink("live");
      if (body) await read(body, attempt, listener);
    } catch (error) {
      // Without a session the page asks for a link; a mistake in the filter stands at its field. Otherwise it tries again.
      if (error instanceof ApiError && (error.status === 401 || error.status === 422)) return;
    }
    if (mine.signal.aborted) return;
    setLink("lost");
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

export function unfollow() {
  following.abort();
}

/** @param {"live" | "lost"} link */
export function setLink(link) {
  if (state.link !== link) render("status");
  state.link = link;
}

/** Read events until the stream ends. @param {ReadableStream<Uint8Array>} body @param {AbortController} attempt @param {Listener} listener */
async function read(body, attempt, listener) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const timer = setTimeout(() => attempt.abort(), SILENT);
    const { done, value } = await reader.read().finally(() => clearTimeout(timer));
    if (done) return;
    const events = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = events.pop() ?? "";
    for (const event of events) take(event, listener);
  }
}

/** @param {string} event @param {Listener} listener */
function take(event, listener) {
  /** @type {{[name: string]: string}} */
  const fields = {};
  for (const line of event.split("\n")) {
    const [name = "", text = ""] = line.split(/: ?(.*)/);
    fields[name] = text;
  }
  cursor = fields.id ?? cursor;
  if (!fields.data) return;
  const value = JSON.parse(fields.data);
  if (fields.event === "row") listener.row(value);
  else if (fields.event === "missed") listener.missed();
  else if (fields.event === "running") {
    state.running = value.rows;
    state.moreRunning = value.more;
    render("list");
  } else if (fields.event === "state") {
    state.server = value;
    render("status");
  }
}
