/** Signs: lines in a square of 16, in the colour of the text around them; and words with a sign. */
import { h, s } from "./dom.js";

const CIRCLE = "M8 2.2a5.8 5.8 0 1 0 0 11.6a5.8 5.8 0 0 0 0-11.6";

const PATHS = {
  check: "M3 8.5l3.2 3.2L13 5",
  cross: "M4 4l8 8M12 4l-8 8",
  changed: "M3 6h10M3 10h10M10.5 3l-5 10",
  dropped: "M3 8h10",
  added: "M8 3v10M3 8h10",
  renamed: "M2.5 8h10M9 4.5L12.5 8 9 11.5M2.5 5v6",
  lossy: `${CIRCLE}M5 8h6`,
  recovered: "M2.6 8a5.4 5.4 0 1 0 1.8-4M2.6 2.4v3.2h3.2",
  retried: "M13.4 8a5.4 5.4 0 1 1-1.8-4M13.4 2.4v3.2h-3.2",
  "fell back": "M2.5 4h4c4 0 2 8 6.5 8M10.5 9.5L13 12l-2.5 2.5M8.5 4H13",
  cut: "M1.5 8h4M10.5 8h4M6.5 11l3-6",
  cancelled: `${CIRCLE}M4 12l8-8`,
  refused: "M5.6 2.2h4.8l3.4 3.4v4.8l-3.4 3.4H5.6L2.2 10.4V5.6zM8 5v3.6M8 11v.2",
  failed: `${CIRCLE}M5.8 5.8l4.4 4.4M10.2 5.8l-4.4 4.4`,
  warning: "M8 2.5L14.3 13.5H1.7zM8 6.5v3.3M8 11.8v.2",
  chevron: "M6 3.5L10.5 8 6 12.5",
  left: "M10 3.5L5.5 8 10 12.5",
  back: "M13.5 8h-11M7 3.5L2.5 8 7 12.5",
  up: "M8 13V3M3.5 7.5L8 3l4.5 4.5",
  copy: "M5.5 5.5v-3h8v8h-3M2.5 5.5h8v8h-8z",
  save: "M8 2.5v7.5M4.5 7L8 10.5 11.5 7M2.5 13.5h11",
  play: "M5 3l8 5-8 5z",
  pause: "M5.5 3v10M10.5 3v10",
  fit: "M2.5 5.5v-3h3M10.5 2.5h3v3M13.5 10.5v3h-3M5.5 13.5h-3v-3",
  search: "M7 2.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 0 0 0-9M10.3 10.3L14 14",
  key: "M10.5 2.5a3 3 0 1 0 0 6a3 3 0 0 0 0-6M8.3 7.7L2.5 13.5M4.5 11.5l1.7 1.7",
  running: `${CIRCLE}M8 4.8V8l2.2 1.5`,
  tool: "M9.3 6.7L3 13M8.5 4.2a3.2 3.2 0 0 1 4.3-1.6L10.6 4.8l.6 1.2 1.2.6 2.1-2.2a3.2 3.2 0 0 1-4.2 4.2",
  fold: "M3.5 5.5L8 10l4.5-4.5",
};

/** @typedef {keyof typeof PATHS} Icon */

/** @param {string} name @returns {name is Icon} */
export function isIcon(name) {
  return name in PATHS;
}

/**
 * Draw a sign. It is decoration: the word stands beside it, or is the label of its button.
 *
 * @param {Icon} name
 * @param {string} [spec]
 */
export function icon(name, spec = "") {
  return s(
    "svg",
    { class: `icon ${spec}`, viewBox: "0 0 16 16", "aria-hidden": "true" },
    s("path", { d: PATHS[name] }),
  );
}

export function logo() {
  return s(
    "svg.logo",
    { viewBox: "0 0 24 24", width: 22, height: 22, "aria-hidden": "true" },
    s("path.up", { d: "M3 6.5h18" }),
    s("path.down", { d: "M3 17.5h18" }),
    s("path.link", { d: "M7 6.5l3 11M14 6.5l3 11" }),
  );
}

/** @type {{[word: string]: [tone: "trouble" | "warn", meaning: string]}} */
const WORDS = {
  lossy: ["warn", "Content was dropped: the upstream could not get it"],
  recovered: ["warn", "A tool call was found in the text"],
  retried: ["warn", "An attempt failed before this answer"],
  "fell back": ["warn", "Another upstream answered"],
  cut: ["trouble", "The stream broke off"],
  cancelled: ["warn", "The client left"],
  refused: ["trouble", "The gateway refused the request"],
  failed: ["trouble", "No attempt succeeded"],
  unpaired: ["trouble", "A call without a result, or a result without a call"],
  doubled: ["warn", "Several results, or an id that is used twice"],
  empty: ["warn", "The result has no content"],
  invalid: ["trouble", "The arguments do not fit the declared schema"],
  incomplete: ["trouble", "The arguments are not complete"],
};

/** @param {string} word */
export function tone(word) {
  return WORDS[word]?.[0] ?? "";
}

/** @param {string} word */
export function badge(word) {
  return h(
    "span",
    { class: `badge ${tone(word)}`, title: WORDS[word]?.[1] },
    icon(isIcon(word) ? word : "warning"),
    h("span.word", word),
  );
}

/** @param {Row} row */
export function statusPill({ outcome, status }) {
  if (outcome === "running") return h("span.pill.running", icon("running"));
  return h(
    "span",
    { class: `pill ${outcome === "ok" ? "well" : outcome === "gone" ? "warn" : "trouble"}`, title: outcome },
    status || "\u2013\u2013\u2013",
  );
}

/** @param {Note["action"]} action */
export function actionSign(action) {
  return icon(isIcon(action) ? action : "changed", `action ${action}`);
}
