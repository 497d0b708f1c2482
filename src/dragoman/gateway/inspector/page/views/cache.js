/** How much of the previous request this one begins with: what a prompt cache could use. */
import { requestPath } from "../api.js";
import { h, put, s } from "../dom.js";
import { bytes, count, percent } from "../format.js";
import { fill, nothing, pair, table } from "../part.js";
import { requestHref, setParams } from "../route.js";
import { state } from "../state.js";
import { wire } from "../text.js";

/** @param {Details} details @returns {View} */
export function cacheTab(details) {
  const element = h("div.cache");
  if (!details.session?.previous) {
    return {
      element: put(
        element,
        nothing(
          "No previous request to compare with",
          details.session
            ? "This is the first recorded request of its session."
            : "The client names no session, so nothing shows which request came before.",
        ),
      ),
    };
  }
  let shown = "";
  const update = () => {
    const side = state.route.params.get("side") ?? "upstream";
    if (side === shown) return;
    shown = side;
    void fill(element, requestPath(details.row.id, "cache"), { side }, content);
  };
  update();
  return { element, update };
}

/** @param {CacheUse} cache */
function content(cache) {
  const { reported, difference, segments } = cache;
  const side = h(
    "select",
    { onchange: () => setParams(state.route, { side: side.value }) },
    [
      ["upstream", "the upstream got"],
      ["client", "the client sent"],
    ].map(([value, title]) => h("option", { value, selected: value === cache.side }, title)),
  );
  return [
    h(
      "section.card",
      h(
        "div.bar",
        h("h2", "The same beginning"),
        h("label.choose", "Of what ", side),
        h("div.actions", h("a", { href: requestHref(state.route, cache.previous, "bodies") }, "Previous request")),
      ),
      h(
        "p.big",
        h("strong", percent(cache.share)),
        h("span.soft", ` ${bytes(cache.common)} of ${bytes(cache.bytes)} are as in the previous request`),
      ),
      strip(cache),
      table(
        "Parts of the body",
        ["Part", "Size", "Same", "Share"],
        segments.map((each) => [
          each.kind,
          bytes(each.bytes),
          bytes(each.common),
          percent(each.bytes ? each.common / each.bytes : null),
        ]),
      ),
    ),
    h(
      "section.card",
      h("h2", "The first difference"),
      difference
        ? [
            h("p", "At ", h("code", difference.path || "the body"), h("span.soft", `, byte ${count(difference.at)}`)),
            h(
              "div.pair",
              differing("Before", difference.before, difference.after),
              differing("Now", difference.after, difference.before),
            ),
          ]
        : h("p", "None: the previous request is the beginning of this one."),
    ),
    h(
      "section.card",
      h("h2", "What the upstream reported"),
      h(
        "dl.facts",
        pair("Read from cache", count(reported.read)),
        pair("Written to cache", count(reported.written)),
        pair("Other input", count(reported.input)),
      ),
      cache.share > 0.5 &&
        reported.read === 0 &&
        h(
          "p.warn",
          "Nothing was read from a cache: the upstream has none, it has expired, or the request has no cache marks.",
        ),
    ),
  ];
}

/** @param {CacheUse} cache */
function strip({ segments, share, common, bytes: size, difference }) {
  const total = segments.reduce((sum, each) => sum + each.bytes, 0) || 1;
  let x = 0;
  const parts = segments.map((each) => {
    const [left, wide, same] = [x, (1000 * each.bytes) / total, (1000 * each.common) / total];
    x += wide;
    const bar = (/** @type {string} */ kind, /** @type {number} */ width) =>
      s("rect", { class: kind, x: left, width: Math.max(0, Math.min(width, wide - 2)), height: 20 });
    return [bar("part", wide), bar("part same", same)];
  });
  const at = (1000 * common) / (size || 1);
  return s(
    "svg.strip",
    {
      viewBox: "0 0 1000 26",
      preserveAspectRatio: "none",
      height: 26,
      role: "img",
      "aria-label": `${percent(share)} of the body are the same`,
    },
    parts,
    difference && s("path.here", { d: `M${at} 0V26` }),
  );
}

/**
 * A text, with what another one does not begin with marked.
 *
 * @param {string} title
 * @param {string} text
 * @param {string} other
 */
function differing(title, text, other) {
  let same = 0;
  while (same < text.length && text[same] === other[same]) same += 1;
  return h(
    "section",
    h("h3", title),
    h(
      "pre.wire",
      { tabindex: 0, role: "region", "aria-label": title },
      wire(text.slice(0, same)),
      h("mark", wire(text.slice(same))),
    ),
  );
}
