/** Where a request was sent, and why each attempt failed. */
import { get } from "../api.js";
import { place } from "../axis.js";
import { h, put, s } from "../dom.js";
import { bytes, ms, NONE } from "../format.js";
import { icon } from "../icon.js";
import { nothing, pair } from "../part.js";
import { href, requestHref } from "../route.js";
import { state } from "../state.js";
import { longText, name, oneLine, wire } from "../text.js";
import { cooldownLine } from "./upstreams.js";

/** @param {Details} details @returns {View} */
export function attemptsTab({ attempts, row }) {
  const element = h("div.attempts");
  if (!attempts.length)
    return {
      element: put(
        element,
        nothing(
          "No attempt is known",
          row.outcome === "refused"
            ? "The gateway refused the request before it asked an upstream."
            : "Only failed attempts are remembered without a recording. Turn recording on at the top right.",
        ),
      ),
    };
  const resting = h("div");
  const end = row.total_ms ?? Math.max(...attempts.map((attempt) => attempt.ended_ms ?? 0), 1);
  put(
    element,
    h(
      "ol.attemptlist",
      attempts.map((attempt) => card(attempt, end, row.id)),
    ),
    resting,
  );
  get("upstreams").then(
    (/** @type {{upstreams: Upstream[]}} */ { upstreams }) => {
      const found = upstreams.filter(
        (each) => attempts.some((attempt) => attempt.upstream === each.name) && each.cooldowns.length,
      );
      if (found.length)
        put(
          resting,
          h(
            "section.card",
            h("h2", "In cooldown now"),
            h(
              "ul",
              found.map((each) => [h("li.upstream", name(each.name)), each.cooldowns.map(cooldownLine)]),
            ),
            h("p", h("a", { href: href(["upstreams"]) }, "All upstreams")),
          ),
        );
    },
    () => undefined,
  );
  return { element };
}

/** @param {Attempt} attempt @param {number} end @param {string} id */
function card(attempt, end, id) {
  const { outcome, status, kind, reason, error, answer, url, upstream } = attempt;
  const [sign, words] = /** @type {const} */ ({
    ok: ["check", "answered"],
    failed: ["failed", "failed"],
    skipped: ["dropped", "not sent"],
  })[outcome];
  const cause = outcome === "ok" ? status : [kind, status || reason].filter(Boolean).join(" ");
  const about = [
    attempt.dialect !== upstream && attempt.dialect,
    attempt.credential && `credential ${attempt.credential}`,
    attempt.model,
  ]
    .filter(Boolean)
    .join(" \u00b7 ");
  const moment = (/** @type {string} */ title, /** @type {Maybe} */ t, /** @type {Maybe} */ size) =>
    pair(title, [ms(t), !!size && h("span.soft", ` ${bytes(size)}`)]);
  return h(
    "li",
    { class: `card attempt ${outcome}` },
    h(
      "header",
      icon(sign),
      h("h2", `${attempt.number}.`, name(upstream)),
      h("span", { class: `state ${outcome}` }, words),
      h("strong", oneLine(String(cause || ""), 120)),
      h("span.soft", oneLine(about)),
    ),
    error && h("p.why", wire(error)),
    bar(attempt, end),
    outcome !== "skipped" &&
      h(
        "dl.facts",
        moment("Sent", attempt.sent_ms, attempt.request_bytes),
        moment("Response head", attempt.head_ms, 0),
        moment("Ended", attempt.ended_ms, attempt.response_bytes),
      ),
    answer && h("section", h("h3", "What it answered"), longText(answer, "Answer of the attempt")),
    url &&
      h(
        "details",
        h("summary", "Request and response"),
        h("p", h("code", name(url))),
        headers("Request headers", attempt.request_headers),
        headers("Response headers", attempt.response_headers),
        h(
          "p",
          h(
            "a",
            { href: requestHref(state.route, id, "bodies", { attempt: attempt.number }) },
            "The body that was sent",
          ),
        ),
      ),
  );
}

/** @param {Attempt} attempt @param {number} end */
function bar(attempt, end) {
  const from = attempt.sent_ms ?? attempt.began_ms;
  if (from === null || from === undefined || attempt.outcome === "skipped") return "";
  const to = attempt.ended_ms ?? end;
  const head = attempt.head_ms ?? to;
  const x = (/** @type {number} */ t) => place({ from: 0, to: end, left: 0, right: 1000 }, t);
  const rect = (/** @type {string} */ kind, /** @type {number} */ one, /** @type {number} */ two) =>
    s("rect", { class: kind, x: x(one), width: Math.max(2, x(two) - x(one)), height: 8 });
  return s(
    "svg.gantt",
    {
      viewBox: "0 0 1000 8",
      preserveAspectRatio: "none",
      height: 8,
      role: "img",
      "aria-label": `From ${ms(from)} to ${ms(attempt.ended_ms) || NONE} of ${ms(end)}`,
    },
    rect("track", 0, end),
    rect(`wait ${attempt.outcome}`, from, head),
    rect(attempt.outcome, head, to),
  );
}

/** @param {string} title @param {[string, string][] | undefined} list */
function headers(title, list) {
  return (
    !!list?.length && [
      h("h3", title),
      h(
        "dl.headers",
        list.map(([key, value]) => h("div", h("dt", oneLine(key, 100)), h("dd", wire(value)))),
      ),
    ]
  );
}
