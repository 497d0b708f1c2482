/** The stream of a request on a time axis, with a scrubber: the answer at any instant. */
import { blocksAt, drawBlocks, instants } from "../answer.js";
import { requestPath } from "../api.js";
import { after, place, valueAt } from "../axis.js";
import { h, put, s } from "../dom.js";
import { bytes, ms, plural } from "../format.js";
import { icon } from "../icon.js";
import { drawLanes, scaleOf } from "../lanes.js";
import { fill, unrecorded } from "../part.js";
import { setParams } from "../route.js";
import { state } from "../state.js";
import { longText, name } from "../text.js";
import { framesTable } from "./frames.js";

const LONGEST_PLAY = 15_000; // milliseconds that a whole stream takes; longer ones run faster

/** @param {Details} details @returns {View} */
export function timelineTab(details) {
  const element = h("div.timeline");
  /** @type {ReturnType<typeof player> | undefined} */
  let current;
  if (!details.has.frames && !details.has.events)
    put(element, unrecorded("The stream was", "\u201cTimes and sizes\u201d is enough for the picture."));
  else
    void fill(
      element,
      requestPath(details.row.id, "timeline"),
      {},
      (/** @type {Timeline} */ timeline) => (current = player(timeline, details)).parts,
    );
  return {
    element,
    update: () => current?.goTo(Number(state.route.params.get("t") ?? Infinity)),
    close: () => current?.close(),
    onKey: (event) => current?.onKey(event) ?? false,
  };
}

/** @param {Timeline} timeline @param {Details} details */
function player(timeline, details) {
  const end = Math.max(timeline.duration_ms, 1);
  const steps = instants(timeline);
  const look = { width: 0, from: 0, to: end, attempts: details.attempts };
  let at = Math.min(end, Number(state.route.params.get("t") ?? end));
  let playing = 0; // the next frame of the animation

  const svg = s("svg.lanes", {
    role: "img",
    "aria-label": `Stream of ${ms(end)}, with ${plural(timeline.silences.length, "silence")} and ${plural(timeline.tools.length, "tool call")}. The table below has the same data.`,
    onpointerdown: drag,
    onpointermove: drag,
  });
  const line = s("path.cursor");
  const range = h("input.scrub", {
    type: "range",
    step: "any",
    "aria-label": "Instant",
    oninput: () => show(Number(range.value)),
    onchange: keep,
    onkeydown: onArrow,
  });
  const play = h("button", { onclick: toggle }, icon("play"), "Play");
  const readout = h("p.readout");
  const answer = h("div.answer", { tabindex: 0, role: "region", "aria-label": "Answer at this instant" });
  const box = h("div.lanesbox", svg);
  const sizes = new ResizeObserver(draw);
  sizes.observe(box);

  function draw() {
    look.width = Math.max(240, box.clientWidth);
    drawLanes(svg, timeline, look);
    svg.append(line);
    set();
  }

  function set() {
    const x = place(scaleOf(look), at);
    line.setAttribute("d", at < look.from || at > look.to ? "" : `M${x} 14V${Number(svg.getAttribute("height")) - 18}`);
    range.min = String(look.from);
    range.max = String(look.to);
    range.value = String(at);
    range.setAttribute("aria-valuetext", ms(at));
    put(readout, words(timeline, at));
    put(
      answer,
      timeline.pieces.length
        ? drawBlocks(blocksAt(timeline.pieces, at), at < end)
        : h("p.soft", "The content was not recorded, only times and sizes."),
    );
    answer.scrollTop = answer.scrollHeight;
  }

  /** @param {number} t */
  function show(t) {
    at = Math.min(end, Math.max(0, t));
    if (at >= look.from && at <= look.to) return set();
    focus(look.to - look.from);
  }

  /** @param {number} span */
  function focus(span) {
    const wide = Math.min(end, Math.max(1, span));
    look.from = Math.max(0, Math.min(end - wide, at - wide / 2));
    look.to = look.from + wide;
    draw();
  }

  /** @param {number} factor above 1: less time */
  function zoom(factor) {
    focus((look.to - look.from) / factor);
  }

  function keep() {
    setParams(state.route, { t: at >= end ? null : Math.round(at * 10) / 10 });
  }

  /** @param {number} t */
  function jump(t) {
    show(t);
    keep();
  }

  /** @param {KeyboardEvent} event */
  function onArrow(event) {
    if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
    event.preventDefault();
    jump(event.key === "ArrowRight" ? (steps[after(steps, at)] ?? end) : (steps[after(steps, at - 1e-9) - 1] ?? 0));
  }

  /** @param {PointerEvent} event */
  function drag(event) {
    if (event.type === "pointermove" && !(event.buttons & 1)) return;
    if (event.type === "pointerdown") svg.setPointerCapture(event.pointerId);
    jump(valueAt(scaleOf(look), event.clientX - svg.getBoundingClientRect().left));
  }

  function toggle() {
    if (playing) return stop();
    const speed = Math.max(1, end / LONGEST_PLAY);
    const [began, first] = [performance.now(), at >= end ? 0 : at];
    const frame = () => {
      show(first + (performance.now() - began) * speed);
      if (at >= end) stop();
      else playing = requestAnimationFrame(frame);
    };
    playing = requestAnimationFrame(frame);
    put(play, icon("pause"), "Pause");
  }

  function stop() {
    cancelAnimationFrame(playing);
    playing = 0;
    put(play, icon("play"), "Play");
    keep();
  }

  const zooms = /** @type {const} */ ([
    ["Zoom in", "added", 2],
    ["Zoom out", "dropped", 0.5],
    ["Show all", "fit", 0],
  ]);
  return {
    parts: [
      h(
        "section.card",
        { "aria-label": "Lanes" },
        box,
        range,
        h(
          "div.bar",
          play,
          h(
            "div.group",
            { role: "group", "aria-label": "Zoom" },
            zooms.map(([title, sign, factor]) =>
              h("button", { "aria-label": title, title, onclick: () => zoom(factor) }, icon(sign)),
            ),
          ),
          readout,
        ),
      ),
      h("section.card", h("h2", "Answer at this instant"), answer),
      lastBytes(timeline),
      framesTable(timeline, jump),
    ],
    goTo: (/** @type {number} */ t) => Math.min(t, end) !== at && !playing && show(t),
    close() {
      cancelAnimationFrame(playing);
      sizes.disconnect();
    },
    /** @param {KeyboardEvent} event */
    onKey(event) {
      const factor = { "+": 2, "-": 0.5, 0: 0 }[event.key];
      if (event.key === " " && !(event.target instanceof HTMLButtonElement)) toggle();
      else if (factor !== undefined) zoom(factor);
      else return false;
      return true;
    },
  };
}

/** @param {Timeline} timeline @param {number} t */
function words({ frames, events, silences }, t) {
  const last = (
    /** @type {string} */ lane,
    /** @type {string} */ word,
    /** @type {{t: number[], kind: string[], bytes: number[]}} */ list,
  ) => {
    const at = after(list.t, t) - 1;
    return (
      at >= 0 &&
      h("span", { class: lane }, `${word} ${at + 1} `, name(list.kind[at]), h("span.soft", ` ${bytes(list.bytes[at])}`))
    );
  };
  const silence = silences.find((each) => each.from < t && t < each.to);
  return [
    h("strong.t", ms(t)),
    last("upstream", "frame", frames),
    last("client", "event", events),
    silence && h("span.warn", `${silence.lane} silent for ${ms(t - silence.from)} of ${ms(silence.to - silence.from)}`),
  ];
}

/** @param {Timeline} timeline */
function lastBytes({ last_bytes: last, is_cut: isCut }) {
  const { upstream, client } = last ?? {};
  return (
    (upstream || client) &&
    h(
      "section.card",
      h("h2", isCut ? "Last bytes before the cut" : "Last bytes"),
      upstream && [h("h3", "From the upstream"), longText(upstream, "Last bytes from the upstream")],
      client && [h("h3", "To the client"), longText(client, "Last bytes to the client")],
    )
  );
}
