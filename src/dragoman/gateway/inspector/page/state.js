/** The one state of the page, and the functions that draw its parts. */

export const state = {
  /** @type {"unknown" | "open" | "none"} */
  session: "unknown",
  /** @type {"connecting" | "live" | "lost"} */
  link: "connecting",
  /** @type {ServerState | null} */
  server: null,
  /** @type {Route} */
  route: { view: "requests", id: "", tab: "", params: new URLSearchParams() },
  /** @type {Row[]} requests that run now, and match the filter */
  running: [],
  moreRunning: 0,
  /** @type {Details | null} of the request that is open */
  details: null,
  singleKeys: readFlag("single-keys", true),
};

/** @type {Map<Part, Set<() => void>>} */
const drawers = new Map();

/** @type {Set<Part>} */
const due = new Set();

/**
 * Register a function that draws a part. Returns a function that removes it.
 *
 * @param {Part} part
 * @param {() => void} draw
 */
export function drawn(part, draw) {
  const all = drawers.get(part) ?? new Set();
  drawers.set(part, all.add(draw));
  return () => all.delete(draw);
}

/** Draw parts of the page, once, after the current work. @param {...Part} parts */
export function render(...parts) {
  if (!due.size) {
    queueMicrotask(() => {
      const now = [...due];
      due.clear();
      for (const part of now) for (const draw of [...(drawers.get(part) ?? [])]) draw();
    });
  }
  for (const part of parts) due.add(part);
}

/** @param {string} name @param {boolean} [otherwise] */
export function readFlag(name, otherwise = false) {
  return (localStorage.getItem(name) ?? (otherwise ? "1" : "0")) === "1";
}

/** @param {string} name @param {boolean} value */
export function keepFlag(name, value) {
  localStorage.setItem(name, value ? "1" : "0");
}
