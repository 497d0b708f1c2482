/** Parts of a view that show what a request to the server brings. */
import { ApiError, get, reason } from "./api.js";
import { h, put } from "./dom.js";
import { icon } from "./icon.js";
import { setParams } from "./route.js";
import { state } from "./state.js";

const PATIENCE = 150; // milliseconds before a part says that it is waiting

/** @type {WeakMap<Element, AbortController>} */
const running = new WeakMap();

/**
 * Fill an element with what a path brings: a word while it waits, then the content, or why there is none.
 *
 * @template T
 * @param {HTMLElement} element
 * @param {string} path
 * @param {Params} query
 * @param {(value: T) => Child} draw
 * @param {(path: string, query: Params, signal: AbortSignal) => Promise<T>} [load]
 */
export async function fill(element, path, query, draw, load = get) {
  running.get(element)?.abort();
  const abort = new AbortController();
  running.set(element, abort);
  element.setAttribute("aria-busy", "true");
  const timer = setTimeout(() => put(element, h("p.waiting", { role: "status" }, "Loading\u2026")), PATIENCE);
  try {
    const value = await load(path, query, abort.signal);
    if (!abort.signal.aborted) put(element, draw(value));
  } catch (error) {
    if (!abort.signal.aborted)
      put(
        element,
        failure(error, () => void fill(element, path, query, draw, load)),
      );
  } finally {
    clearTimeout(timer);
    if (running.get(element) === abort) element.removeAttribute("aria-busy");
  }
}

/** What is shown in place of content that could not be loaded. @param {unknown} error @param {() => void} again */
export function failure(error, again) {
  const isFinal = error instanceof ApiError && [401, 404, 409].includes(error.status);
  return h(
    "div.empty",
    icon("warning", "big"),
    h("p", { role: "alert" }, reason(error)),
    isFinal ? "" : h("p", h("button", { onclick: again }, "Try again")),
  );
}

/** What is shown where there is nothing: why, and what to do next. @param {string} title @param {...Child} rest */
export function nothing(title, ...rest) {
  return h(
    "div.empty",
    h("h2", title),
    rest.map((each) => (typeof each === "string" ? h("p", each) : each)),
  );
}

/**
 * Buttons of which one is pressed; each changes a parameter of the address.
 *
 * @param {string} label
 * @param {string} param
 * @param {{[value: string]: string}} titles
 * @param {string} now
 */
export function choices(label, param, titles, now) {
  return h(
    "div.group",
    { role: "group", "aria-label": label },
    Object.entries(titles).map(([value, title]) =>
      h(
        "button",
        { "aria-pressed": String(value === now), onclick: () => setParams(state.route, { [param]: value }) },
        title,
      ),
    ),
  );
}

/** What is shown for what was not recorded. @param {string} what @param {...Child} rest */
export function unrecorded(what, ...rest) {
  return nothing(
    `${what} not recorded`,
    "Turn \u201cBodies\u201d on at the top right, then send the request again.",
    ...rest,
  );
}

/** @param {string} name @param {Child} value @param {string | null} [title] */
export function pair(name, value, title = null) {
  return h("div", { title }, h("dt", name), h("dd", value));
}

/**
 * A table, of numbers except for its first column.
 *
 * @param {string} caption for screen readers
 * @param {string[]} titles
 * @param {Child[][]} lines
 */
export function table(caption, titles, lines) {
  return h(
    "div.tablebox",
    { tabindex: 0, role: "region", "aria-label": caption },
    h(
      "table",
      h("caption.hidden", caption),
      h(
        "thead",
        h(
          "tr",
          titles.map((title) => h("th", { scope: "col" }, title)),
        ),
      ),
      h(
        "tbody",
        lines.map((line) =>
          h(
            "tr",
            line.map((cell) => h("td", cell)),
          ),
        ),
      ),
    ),
  );
}
