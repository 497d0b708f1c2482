/** The picture of a stream: frames of the upstream above, events to the client below, on one axis. */
import { pack, place, ticks } from "./axis.js";
import { s } from "./dom.js";
import { count, ms } from "./format.js";
import { oneLine } from "./text.js";

const SIDE = 16; // pixels left and right of the axis; half of the scrubber's thumb fits in
const TALL = 34; // of the highest tick
const [MARKS, UP, DOWN] = [16, 66, 110]; // where marks begin; the line of each lane
const END = DOWN + TALL + 8;
const BAR = 18; // of a row of tool calls
const LETTER = 6.6; // width of one, about

/** @param {Look} look @returns {Scale} */
export function scaleOf({ from, to, width }) {
  return { from, to, left: SIDE, right: Math.max(SIDE + 1, width - SIDE) };
}

/** Draw a timeline. @param {SVGSVGElement} svg @param {Timeline} timeline @param {Look} look */
export function drawLanes(svg, timeline, look) {
  const { frames, events, silences, pings, tools } = timeline;
  const scale = scaleOf(look);
  /** @type {Seen} */
  const seen = (from, to) => to >= look.from && from <= look.to;
  const shown = tools.filter((tool) => seen(tool.from, tool.to)).map((tool) => toolBar(scale, tool));
  const rows = pack(
    shown.map((bar) => bar.extent),
    4,
  );
  const height = END + (rows.length ? Math.max(...rows) + 1 : 0) * BAR + 22;
  const failed = new Set(look.attempts.filter(({ outcome }) => outcome === "failed").map(({ number }) => number));
  const isFailed = (/** @type {number} */ at) => failed.has(frames.attempt[at]);
  const name = (/** @type {string} */ lane, /** @type {number} */ y, /** @type {number} */ number) =>
    s("text", { class: `lanename ${lane}`, x: scale.left, y }, `${lane} \u00b7 ${count(number)}`);
  svg.setAttribute("height", String(height));
  svg.setAttribute("viewBox", `0 0 ${look.width} ${height}`);
  svg.replaceChildren(
    ...axis(scale, height, look),
    ...silences.filter(({ from, to }) => seen(from, to)).flatMap((each) => silence(scale, each)),
    ...attemptBars(scale, look, seen),
    s("path.lane.upstream", { d: `M${scale.left} ${UP + 0.5}H${scale.right}` }),
    s("path.lane.client", { d: `M${scale.left} ${DOWN + 0.5}H${scale.right}` }),
    s("path.links", { d: look.isSmall ? "" : links(scale, timeline) }),
    s("path.ticks.upstream", { d: tickPath(scale, frames, UP, -1, (at) => !isFailed(at)) }),
    s("path.ticks.failed", { d: tickPath(scale, frames, UP, -1, isFailed) }),
    s("path.ticks.client", { d: tickPath(scale, events, DOWN, 1, () => true) }),
    ...pings
      .filter((t) => seen(t, t))
      .map((t) => s("circle.ping", { cx: place(scale, t), cy: DOWN + 10, r: 3.5 }, s("title", `ping at ${ms(t)}`))),
    ...shown.flatMap((bar, at) => bar.draw(END + rows[at] * BAR)),
    ...marks(scale, timeline, look, seen),
    name("upstream", UP + 14, frames.t.length),
    name("client", DOWN - 6, events.t.length),
  );
}

/** @param {Scale} scale @param {number} height @param {Look} look */
function axis(scale, height, look) {
  return ticks(look.from, look.to, Math.max(2, Math.floor(look.width / 110))).flatMap((value) => {
    const x = Math.round(place(scale, value)) + 0.5;
    const anchor = x > scale.right - 24 ? "end" : x < scale.left + 20 ? "start" : "middle";
    return [
      s("path.gridline", { d: `M${x} ${MARKS}V${height - 18}` }),
      s("text.axis", { x, y: height - 5, "text-anchor": anchor }, value && ms(value)),
    ];
  });
}

/**
 * The ticks of one lane as one path: one for each column of pixels, as high as the largest of its frames.
 *
 * @param {Scale} scale
 * @param {{t: number[], bytes: number[]}} lane
 * @param {number} base
 * @param {number} direction
 * @param {(index: number) => boolean} takes
 */
function tickPath(scale, { t: times, bytes }, base, direction, takes) {
  /** @type {Map<number, number>} */
  const highest = new Map();
  times.forEach((t, at) => {
    if (t < scale.from || t > scale.to || !takes(at)) return;
    const x = Math.round(place(scale, t));
    highest.set(x, Math.max(highest.get(x) ?? 0, Math.min(TALL, 4 + 4.2 * Math.log2(1 + bytes[at] / 16))));
  });
  return [...highest].map(([x, high]) => `M${x} ${base}v${(direction * high).toFixed(1)}`).join("");
}

/** From each frame to its events; lines at the same pixels once. @param {Scale} scale @param {Timeline} timeline */
function links(scale, { links: all, frames, events }) {
  const drawn = new Set();
  for (const [frame, first, last] of all) {
    const from = frames.t[frame];
    for (let event = first; event <= last; event += 1) {
      const to = events.t[event];
      if (to >= scale.from && from <= scale.to)
        drawn.add(
          `M${Math.round(place(scale, Math.max(scale.from, from)))} ${UP + 3}L${Math.round(place(scale, Math.min(scale.to, to)))} ${DOWN - 2}`,
        );
    }
  }
  return [...drawn].join("");
}

/** The places of a span, within the axis. @param {Scale} scale @param {number} from @param {number} to */
function span(scale, from, to) {
  return [place(scale, Math.max(from, scale.from)), place(scale, Math.min(to, scale.to))];
}

/** @param {Scale} scale @param {Timeline["silences"][number]} silence */
function silence(scale, { from, to, lane }) {
  const [left, right] = span(scale, from, to);
  const y = lane === "upstream" ? UP - TALL - 2 : DOWN + 1;
  return [
    s(
      "rect.silence",
      { x: left, y, width: Math.max(1, right - left), height: TALL + 2 },
      s("title", `${lane} is silent for ${ms(to - from)}, from ${ms(from)} on`),
    ),
    right - left > 44
      ? s("text.silencename", { x: (left + right) / 2, y: y + TALL / 2 + 5, "text-anchor": "middle" }, ms(to - from))
      : s("g"),
  ];
}

/** @param {Scale} scale @param {Look} look @param {Seen} seen */
function attemptBars(scale, look, seen) {
  return look.attempts.flatMap(
    ({ sent_ms: sent, began_ms: began, ended_ms: ended, outcome, number, upstream, reason }) => {
      const [from, to] = [sent ?? began, ended ?? look.to];
      if (from === null || from === undefined || !seen(from, to) || outcome === "skipped") return [];
      const [left, right] = span(scale, from, to);
      const words = `${number} ${oneLine(upstream, 30)}${outcome === "ok" ? "" : ` ${oneLine(reason ?? "", 30)}`}`;
      return [
        s(
          "rect",
          { class: `attempt ${outcome}`, x: left, width: Math.max(2, right - left), height: 12, rx: 2 },
          s("title", `attempt ${words}`),
        ),
        right - left > words.length * LETTER && s("text.attemptname", { x: left + 4, y: 9 }, words),
      ].filter((each) => each !== false);
    },
  );
}

/**
 * @param {Scale} scale
 * @param {Timeline["tools"][number]} tool
 * @returns {{extent: [number, number], draw: (y: number) => SVGElement[]}}
 */
function toolBar(scale, { from, to, name: tool, recovered }) {
  const [left, end] = span(scale, from, to);
  const right = Math.max(end, left + 3);
  const name = oneLine(tool, 40) + (recovered ? " (found in text)" : "");
  const wide = name.length * LETTER + 8;
  const side = right - left > wide ? "inside" : right + wide > scale.right ? "before" : "after";
  const x = side === "inside" ? left + 5 : side === "before" ? left - 5 : right + 5;
  return {
    extent: [side === "before" ? left - wide : left, side === "after" ? right + wide : right],
    draw: (y) => [
      s(
        "rect",
        { class: `toolbar ${recovered ? "recovered" : ""}`, x: left, y, width: right - left, height: BAR - 4, rx: 2 },
        s("title", `${name}: ${ms(from)} to ${ms(to)}`),
      ),
      s("text", { class: `toolname ${side}`, x, y: y + 11, "text-anchor": side === "before" ? "end" : "start" }, name),
    ],
  };
}

/** @param {Scale} scale @param {Timeline} timeline @param {Look} look @param {Seen} seen */
function marks(scale, timeline, look, seen) {
  let free = -Infinity;
  return timeline.marks
    .filter(({ t }) => seen(t, t))
    .sort((one, two) => one.t - two.t)
    .flatMap(({ t, what }) => {
      const x = Math.round(place(scale, t)) + 0.5;
      const tone = what === "cut" || what === "attempt failed" ? "trouble" : "";
      const wide = what.length * LETTER;
      const isLeft = x + wide > scale.right;
      const left = isLeft ? x - wide : x;
      const line = s(
        "path",
        { class: `mark ${tone}`, d: `M${x} ${MARKS}V${END - 6}` },
        s("title", `${what} at ${ms(t)}`),
      );
      if (look.isSmall || left < free) return [line];
      free = left + wide;
      return [
        line,
        s(
          "text",
          { class: `markname ${tone}`, x: isLeft ? x - 4 : x + 4, y: 25, "text-anchor": isLeft ? "end" : "start" },
          what,
        ),
      ];
    });
}
