/** What happened to a request, step by step, and what was changed. */
import { requestPath } from "../api.js";
import { h, put, s } from "../dom.js";
import { ms } from "../format.js";
import { actionSign, icon } from "../icon.js";
import { drawLanes } from "../lanes.js";
import { fill } from "../part.js";
import { requestHref } from "../route.js";
import { state } from "../state.js";
import { name, oneLine, wire } from "../text.js";

const SHOWN = 12; // silences, and notes of one rule

/** @param {Details} details @returns {View} */
export function summaryTab(details) {
  const story = h("div");
  const sizes = new ResizeObserver(() => picture());
  let picture = () => {};
  /** @type {To} */
  const to = (tab, params) => requestHref(state.route, details.row.id, tab, params);
  /** @param {Timeline | null} timeline */
  const draw = (timeline) => {
    const list = h(
      "ol.steps",
      steps(details, timeline, to).map(([t, sign, tone, ...content]) =>
        h("li", { class: tone }, h("span.t", t === null ? "" : ms(t)), icon(sign), h("div", content)),
      ),
    );
    if (!timeline?.duration_ms) return [list, missing(details)];
    const svg = s("svg.lanes", { role: "img", "aria-label": `Timeline of ${ms(timeline.duration_ms)}` });
    const link = h("a.picture", { href: to("timeline") }, svg);
    picture = () =>
      drawLanes(svg, timeline, {
        width: link.clientWidth || 600,
        from: 0,
        to: timeline.duration_ms,
        attempts: details.attempts,
        isSmall: true,
      });
    sizes.observe(link);
    return [link, list, missing(details)];
  };
  if (details.has.frames || details.has.events) void fill(story, requestPath(details.row.id, "timeline"), {}, draw);
  else put(story, draw(null));
  const element = h(
    "div.summary",
    h("section.card", h("h2", "What happened"), story),
    h("section.card", h("h2", "What was changed"), changes(details, to)),
  );
  return { element, close: () => sizes.disconnect() };
}

/** @param {Details} details @param {Timeline | null} timeline @param {To} to */
function steps({ row, attempts }, timeline, to) {
  /** @type {Step[]} */
  const found = [
    [
      0,
      "chevron",
      "",
      `The client sends ${row.method} `,
      name(row.path),
      row.dialect ? ` (${row.dialect})` : "",
      row.stream ? ", and wants a stream." : ".",
    ],
  ];
  for (const attempt of attempts) found.push(attemptStep(attempt, to));
  for (const { from, to: end, lane } of timeline?.silences.slice(0, SHOWN) ?? []) {
    found.push([
      from,
      "pause",
      "warn",
      h(
        "a",
        { href: to("timeline", { t: Math.round(from) }) },
        lane === "upstream" ? "The upstream is silent" : "The client gets nothing",
      ),
      ` for ${ms(end - from)}.`,
    ]);
  }
  for (const tool of timeline?.tools ?? []) {
    const [sign, rest] = /** @type {[Icon, string]} */ (
      tool.recovered ? ["recovered", ", found in its text."] : ["tool", "."]
    );
    found.push([tool.from, sign, "warn", "The model calls ", h("strong", name(tool.name)), rest]);
  }
  /** @type {{[what: string]: [Icon, string, string]}} */
  const marks = {
    "first byte": ["up", "", "The client gets its first byte"],
    cut: ["cut", "trouble", "The stream breaks off"],
    cancelled: ["cancelled", "warn", "The client leaves"],
  };
  for (const { t, what } of timeline?.marks ??
    (row.first_byte_ms ? [{ t: row.first_byte_ms, what: "first byte" }] : [])) {
    const mark = marks[what];
    if (mark)
      found.push([
        t,
        mark[0],
        mark[1],
        what === "cut" ? h("a", { href: to("timeline", { t: Math.round(t) }) }, mark[2]) : mark[2],
        ".",
      ]);
  }
  found.sort(([one], [two]) => (one ?? 0) - (two ?? 0));
  /** @type {{[outcome: string]: [Icon, string, string]}} */
  const ends = {
    ok: ["check", "well", row.stop ? `The answer ends: ${row.stop}` : "The answer ends"],
    gone: ["cancelled", "warn", "The client has left before the end"],
    refused: ["refused", "trouble", "The gateway refuses the request"],
    failed: ["failed", "trouble", "No attempt has succeeded"],
    broken: ["failed", "trouble", "The answer is broken off"],
    cut: ["failed", "trouble", "The gateway ends the answer"],
  };
  const [sign, tone, words] = ends[row.outcome] ?? ["failed", "trouble", row.outcome];
  if (row.outcome !== "running")
    found.push([row.total_ms ?? null, sign, tone, words, row.error ? [": ", wire(row.error)] : "."]);
  return found;
}

/** @param {Attempt} attempt @param {To} to @returns {Step} */
function attemptStep(attempt, to) {
  const { outcome, status, error, reason, kind, credential, ended_ms: end, head_ms: head } = attempt;
  const t = attempt.sent_ms ?? attempt.began_ms ?? null;
  const since = (/** @type {Maybe} */ at) => (at && t !== null ? ` after ${ms(at - t)}` : "");
  const link = h("a", { href: to("attempts") }, `Attempt ${attempt.number}`);
  const target = [h("span.upstream", name(attempt.upstream)), credential ? [" with ", name(credential)] : ""];
  if (outcome === "skipped")
    return [t, "dropped", "soft", link, " is not sent to ", target, `: ${oneLine(reason ?? "", 200)}.`];
  if (outcome === "ok")
    return [
      t,
      "check",
      "well",
      link,
      " at ",
      target,
      status ? ` is answered with ${status}${since(head)}.` : " is answered.",
    ];
  return [
    t,
    "failed",
    "trouble",
    link,
    " at ",
    target,
    ` fails${since(end)}: `,
    h("strong", [kind, status || reason].filter(Boolean).join(" ")),
    error && h("q", wire(error)),
  ];
}

/** @param {Details} details @param {To} to */
function changes({ notes, row }, to) {
  if (!notes.length)
    return h("p.soft", row.verbatim ? "Nothing: the client got the upstream\u2019s own bytes." : "Nothing.");
  return h(
    "ul.rules",
    [...Map.groupBy(notes, ({ rule }) => rule)].map(([rule, own]) =>
      h(
        "li",
        h("h3", actionSign(own[0].action), h("code", rule), own.length > 1 && h("span.count", own.length)),
        h(
          "ul",
          own
            .slice(0, SHOWN)
            .map((note) =>
              h(
                "li",
                h("a", { href: to("bodies", { note: notes.indexOf(note) }) }, name(note.at || "the request")),
                note.part === "response" && h("span.soft", " (response)"),
                h("p", wire(note.detail)),
              ),
            ),
          own.length > SHOWN && h("li.soft", `and ${own.length - SHOWN} more`),
        ),
      ),
    ),
  );
}

/** @param {Details} details */
function missing({ row, truncated }) {
  if (truncated.length) return h("p.hint", `Too large to keep whole: ${truncated.join(", ").replaceAll("_", " ")}.`);
  if (row.recorded === "full" || row.outcome === "running") return "";
  return h(
    "p.hint",
    row.recorded ? "Only times and sizes of this request were recorded." : "This request was not recorded.",
    " To see bodies and streams of the next ones, turn recording on at the top right.",
  );
}
