/** A field for JSON with line numbers and marks, and where the values of its text stand. */
import { h, put } from "./dom.js";
import { icon } from "./icon.js";
import { join } from "./tree.js";
import { room } from "./virtual.js";

const SIGN = /** @type {const} */ ({ trouble: "failed", warn: "warning", note: "changed" });

/** @param {string} label @param {() => void} onInput */
export function editor(label, onInput) {
  const area = h("textarea.wire", {
    "aria-label": label,
    spellcheck: "false",
    autocomplete: "off",
    autocapitalize: "off",
    wrap: "off",
    placeholder: "Paste a request in any dialect",
    oninput: () => {
      findLines();
      onInput();
    },
    onscroll: draw,
  });
  const gutter = h("div.gutter", { "aria-hidden": "true" });
  /** @type {number[]} where each line begins */
  let lines = [];
  /** @type {Map<number, Tone>} the worst mark of each line */
  let marked = new Map();
  const sizes = new ResizeObserver(draw);
  sizes.observe(area);

  function findLines() {
    lines = [0, ...Array.from(area.value.matchAll(/\n/g), ({ index }) => index + 1)];
    draw();
  }

  /** @param {number} at */
  function lineOf(at) {
    return Math.max(
      0,
      lines.findLastIndex((begin) => begin <= at),
    );
  }

  function lineHeight() {
    return parseFloat(getComputedStyle(area).lineHeight) || 18;
  }

  function draw() {
    const high = lineHeight();
    const first = Math.max(0, Math.floor(area.scrollTop / high) - 1);
    const shown = lines.slice(first, first + Math.ceil(area.clientHeight / high) + 3);
    put(
      gutter,
      room(first * high),
      shown.map((_, at) => {
        const tone = marked.get(first + at);
        return h("div", { class: `number ${tone ?? ""}` }, tone && icon(SIGN[tone]), first + at + 1);
      }),
      room(area.clientHeight),
    );
    gutter.scrollTop = area.scrollTop;
  }

  findLines();
  return {
    element: h("div.editor", gutter, area),
    area,
    lineOf,
    close: () => sizes.disconnect(),
    /** @param {string} text */
    write(text) {
      area.value = text;
      findLines();
    },
    /** @param {{at: number, tone: Tone}[]} marks the worst last */
    setMarks(marks) {
      marked = new Map(marks.map(({ at, tone }) => [lineOf(at), tone]));
      draw();
    },
    /** @param {number} from @param {number} to */
    select(from, to) {
      area.focus();
      area.setSelectionRange(from, to);
      area.scrollTop = lineOf(from) * lineHeight() - area.clientHeight / 3;
    },
  };
}

const TOKEN = /[\s\ufeff]*("(?:[^"\\]|\\[^])*"|[{}[\],:]|[^\s{}[\],:"]+)/y;

/** Where each value of a JSON text stands, by its path. @param {string} text */
export function placesOf(text) {
  /** @type {Map<string, [from: number, to: number]>} */
  const places = new Map();
  /** @type {{path: string, from: number, name: string | number | null}[]} the objects and arrays around a value */
  const around = [];
  TOKEN.lastIndex = 0;
  for (let found = TOKEN.exec(text); found; found = TOKEN.exec(text)) {
    const [, token] = found;
    const to = TOKEN.lastIndex;
    const from = to - token.length;
    const last = around.at(-1);
    const path = !last
      ? ""
      : typeof last.name === "number"
        ? `${last.path}[${last.name}]`
        : join(last.path, last.name ?? "");
    if (token === "{" || token === "[") around.push({ path, from, name: token === "[" ? 0 : null });
    else if (token === "}" || token === "]") places.set(last?.path ?? "", [around.pop()?.from ?? 0, to]);
    else if (token === "," && last) last.name = typeof last.name === "number" ? last.name + 1 : null;
    else if (token !== ":" && last?.name === null) last.name = parsed(token);
    else if (token !== ":") places.set(path, [from, to]);
  }
  return places;
}

/** @param {string} token */
function parsed(token) {
  try {
    return String(JSON.parse(token));
  } catch {
    return token;
  }
}

/** Why a text is not JSON, and at which character; null if it is. @param {string} text */
export function mistakeIn(text) {
  try {
    JSON.parse(text);
    return null;
  } catch (error) {
    const [, at, line, column] = /position (\d+)|line (\d+) column (\d+)/.exec(String(error)) ?? [];
    const before = line ? text.split("\n", Number(line) - 1).join("\n").length : 0;
    return {
      at: Number(at ?? before + Number(column ?? 0)),
      message: String(error).replace(/^SyntaxError: |(?: in JSON)? at position.*/g, ""),
    };
  }
}

/** @param {Map<string, [number, number]>} places @param {string} path */
export function findPlace(places, path) {
  for (let at = path; at; at = at.slice(0, Math.max(0, at.lastIndexOf("."), at.lastIndexOf("[")))) {
    const found = places.get(at);
    if (found) return found;
  }
  return places.get("") ?? null;
}
