/** The table behind the picture of a stream: every frame and event. Only visible rows exist. */
import { h } from "../dom.js";
import { bytes, ms, plural } from "../format.js";
import { name } from "../text.js";
import { VirtualList } from "../virtual.js";

/** @param {Timeline} timeline @param {(t: number) => void} jump */
export function framesTable(timeline, jump) {
  const { frames, events, more } = timeline;
  const total = frames.t.length + events.t.length;
  const body = h("div.rows", { role: "rowgroup" });
  const box = h(
    "div.frames",
    { role: "table", "aria-label": "Frames and events", "aria-rowcount": total + 1, tabindex: 0 },
    line("columnheader", ["Time", "Lane", "Number", "Kind", "Size", "From frame"], "titles"),
    body,
  );
  /** @type {VirtualList | undefined} */
  let list;
  /** @type {HTMLDetailsElement} */
  const element = h(
    "details.card",
    {
      ontoggle: () => {
        if (!element.open) return;
        const lines = list ? [] : linesOf(timeline);
        list ??= new VirtualList(body, {
          count: () => total,
          key: String,
          draw: (index) => {
            const [t, lane, ...rest] = lines[index];
            return line("cell", [
              h("button.plain", { onclick: () => jump(t) }, ms(t)),
              h("span", { class: lane }, lane),
              ...rest,
            ]);
          },
        });
        list.draw();
      },
    },
    h(
      "summary",
      h("h2", "Frames and events"),
      h("span.soft", plural(total, "row"), !!more && `, ${more} more left out`),
    ),
    box,
  );
  return element;
}

/** @param {string} role @param {Child[]} cells @param {string} [spec] */
function line(role, cells, spec = "") {
  return h(
    "div",
    { class: `frame ${spec}`, role: "row" },
    cells.map((cell) => h("span", { role }, cell)),
  );
}

/** @param {Timeline} timeline */
function linesOf({ frames, events, links }) {
  /** @type {number[]} the frame of each event */
  const origin = [];
  for (const [frame, first, last] of links)
    for (let event = first; event <= last; event += 1) origin[event] = frame + 1;
  /** @type {[t: number, lane: string, ...rest: Child[]][]} */
  const lines = frames.t.map((t, at) => [t, "upstream", at + 1, name(frames.kind[at]), bytes(frames.bytes[at])]);
  events.t.forEach((t, at) =>
    lines.push([t, "client", at + 1, name(events.kind[at]), bytes(events.bytes[at]), origin[at]]),
  );
  return lines.sort(([one], [two]) => one - two);
}
