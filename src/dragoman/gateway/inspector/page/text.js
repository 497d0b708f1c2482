/** Text from bodies, shown so that nothing in it is invisible or changes what stands around it. */
import { h } from "./dom.js";

// Controls (not tab and line feed), soft hyphen, marks and overrides of direction, spaces without width, lone halves of
// surrogate pairs, and tag characters. The joiners U+200C and U+200D are left out: scripts and emoji need them.
const SIGNS =
  /[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|\p{Cs}|[\u{e0000}-\u{e007f}]/gu;
const FIRST = 20_000; // characters that a block of text shows at first

/** A text, in which characters that cannot be seen become signs. @param {string} text @returns {Child} */
export function wire(text) {
  if (text.search(SIGNS) < 0) return text;
  /** @type {Child[]} */
  const nodes = [];
  let from = 0;
  for (const { 0: found, index } of text.matchAll(SIGNS)) {
    const code = found.codePointAt(0) ?? 0;
    const title = `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
    nodes.push(
      text.slice(from, index),
      h("span.sign", { title }, code < 0x20 ? String.fromCharCode(0x2400 + code) : title),
    );
    from = index + found.length;
  }
  return [...nodes, text.slice(from)];
}

/**
 * A text in one line, cut to a number of characters, for titles and labels.
 *
 * @param {string} text
 * @param {number} [most]
 */
export function oneLine(text, most = 200) {
  const start = text
    .slice(0, most)
    .replace(/[\s\u2028\u2029]+/g, " ")
    .replace(SIGNS, "\ufffd");
  return text.length > most ? `${start}\u2026` : start;
}

/**
 * A name from a request, isolated: text from right to left does not move its neighbours.
 *
 * @param {string} text
 * @param {string} [spec]
 */
export function name(text, spec) {
  return h("bdi", { class: spec, title: text.length > 24 && oneLine(text, 400) }, wire(text));
}

/**
 * A block of text that may be long: its beginning, and a button for the rest.
 *
 * @param {string} text
 * @param {string} label
 */
export function longText(text, label) {
  const block = h("pre.wire", { tabindex: 0, role: "region", "aria-label": label });
  const more = h("button.small", { onclick: add });
  let shown = 0;
  function add() {
    more.remove();
    const end = shown ? shown * 10 : FIRST;
    const rest = text.length - end;
    block.append(h("span", wire(text.slice(shown, end))));
    shown = end;
    if (rest <= 0) return;
    more.textContent = `Show more: ${rest.toLocaleString()} of ${text.length.toLocaleString()} characters`;
    block.append("\n", more);
  }
  add();
  return block;
}
