/** The answer as it was at an instant: the pieces that had arrived, joined by block. */
import { h } from "./dom.js";
import { icon } from "./icon.js";
import { name, wire } from "./text.js";

const TAIL = 8000; // characters of a block that are shown: its end, where something happens

/** @param {Timeline["pieces"]} pieces in the order of time @param {number} t */
export function blocksAt(pieces, t) {
  /** @type {Map<number, Block>} */
  const blocks = new Map();
  for (const piece of pieces) {
    if (piece.t > t) break;
    const block = blocks.get(piece.key) ?? { kind: piece.kind, name: piece.name ?? "", text: "" };
    block.text += piece.text;
    blocks.set(piece.key, block);
  }
  return [...blocks.values()];
}

/** @param {Block[]} blocks @param {boolean} isOpen whether the last one may go on */
export function drawBlocks(blocks, isOpen) {
  if (!blocks.length) return [h("p.soft", "Nothing has arrived yet.")];
  return blocks.map(({ kind, name: tool, text }, at) =>
    h(
      "div",
      { class: `block ${kind}` },
      kind !== "text" &&
        h("p.kind", kind === "tool" && icon("tool"), kind === "tool" ? name(tool || "tool call") : kind),
      h(
        "pre.wire",
        text.length > TAIL &&
          h("span.soft", `\u2026 ${(text.length - TAIL).toLocaleString()} characters before \u2026\n`),
        wire(text.slice(-TAIL)),
        isOpen && at === blocks.length - 1 && h("span.caret"),
      ),
    ),
  );
}

/** @param {Timeline} timeline */
export function instants({ frames, events, pieces }) {
  return Float64Array.from(new Set([...frames.t, ...events.t, ...pieces.map((piece) => piece.t)])).sort();
}
