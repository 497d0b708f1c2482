/** One request: what it was, and its parts. */
import { get, isAborted, requestPath } from "../api.js";
import { h, isWriting, put } from "../dom.js";
import { count, dollars, moment, ms, percent, time } from "../format.js";
import { badge, icon, statusPill } from "../icon.js";
import { failure, pair } from "../part.js";
import { go, listHref, requestHref, TABS } from "../route.js";
import { indexOf, rowAt } from "../rows.js";
import { drawn, state } from "../state.js";
import { name, wire } from "../text.js";
import { attemptsTab } from "./attempts.js";
import { bodiesTab } from "./bodies.js";
import { cacheTab } from "./cache.js";
import { exportDialog } from "./export.js";
import { rawTab } from "./raw.js";
import { modelText, routeText } from "./row.js";
import { summaryTab } from "./summary.js";
import { timelineTab } from "./timeline.js";
import { toolsTab } from "./tools.js";
import { translateTab } from "./translate.js";

/**
 * @type {{[tab: string]: [title: string, make: (details: Details) => View, number: (details: Details) => number | string]}}
 */
const TAB = {
  summary: ["Summary", summaryTab, () => 0],
  bodies: ["Bodies", bodiesTab, ({ notes }) => notes.length],
  tools: ["Tools", toolsTab, ({ row }) => row.tools?.length ?? 0],
  timeline: ["Timeline", timelineTab, () => 0],
  attempts: ["Attempts", attemptsTab, ({ attempts }) => attempts.length],
  cache: ["Cache", cacheTab, ({ row }) => (row.cache_share ? percent(row.cache_share) : 0)],
  translate: ["Other dialects", translateTab, () => 0],
  raw: ["Raw", rawTab, () => 0],
};

export function requestView() {
  const head = h("header.reqhead");
  const tabs = h("nav.tabs", { "aria-label": "Parts of the request" });
  const body = h("div.tabbody");
  const element = h("section.request", { "aria-label": "Request", tabindex: -1 });
  /** @type {View | undefined} */
  let tab;
  let shown = ""; // id and tab
  let abort = new AbortController();

  async function load() {
    const { id } = state.route;
    abort.abort();
    abort = new AbortController();
    try {
      const details = await get(requestPath(id), {}, abort.signal);
      state.details = details;
      shown = "";
      put(element, head, tabs, body);
      drawHead(details);
      draw();
      element.scrollTop = 0;
      // Where the list is not beside it, the row that had the focus is gone.
      const isAlone = !document.querySelector(".list")?.getClientRects().length;
      if (isAlone && document.activeElement === document.body) element.focus({ preventScroll: true });
    } catch (error) {
      if (isAborted(error)) return;
      state.details = null;
      tab?.close?.();
      put(element, back(), failure(error, load));
    }
  }

  function draw() {
    const { details, route } = state;
    if (!details) return;
    put(
      tabs,
      TABS.map((each, at) => {
        const [title, , number] = TAB[each];
        const count = number(details);
        return h(
          "a",
          {
            href: requestHref(route, route.id, each),
            "aria-current": each === route.tab && "page",
            title: `${title} (${at + 1})`,
          },
          title,
          !!count && h("span.count", count),
        );
      }),
    );
    tabs.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
    const key = `${route.id} ${route.tab}`;
    if (key === shown) return tab?.update?.();
    shown = key;
    tab?.close?.();
    tab = TAB[route.tab][1](details);
    put(body, tab.element);
    if (body.getBoundingClientRect().top < tabs.getBoundingClientRect().bottom - 1) body.scrollIntoView();
  }

  /** @param {Details} details */
  function drawHead(details) {
    const { row, session } = details;
    put(
      head,
      back(),
      h(
        "div.title",
        h("h1", modelText(row)),
        statusPill(row),
        (row.badges ?? []).map(badge),
        h(
          "div.actions",
          neighbour(session?.previous, "left", "Previous request of the session ([)"),
          neighbour(session?.next, "chevron", "Next request of the session (])"),
          h("button", { onclick: () => exportDialog(details), title: "Export (x)" }, icon("save"), "Export"),
        ),
      ),
      h(
        "p.about",
        h("span", { title: moment(row.at ?? row.began) }, time(row.at ?? row.began)),
        h("span", `${row.method} `, name(row.path)),
        h("span", routeText(row)),
        row.key && h("span", "key ", name(row.key)),
        row.client && h("span", "from ", name(row.client)),
        h("code", row.id),
      ),
      row.error && h("p.mistake", icon("failed"), h("span", wire(row.error))),
      h("dl.facts", facts(row)),
    );
  }

  /** @param {string | null | undefined} id @param {"left" | "chevron"} sign @param {string} title */
  function neighbour(id, sign, title) {
    return (
      id &&
      h(
        "a.button.plain",
        { href: requestHref(state.route, id, state.route.tab), title, "aria-label": title },
        icon(sign),
      )
    );
  }

  const stop = drawn("list", () => {
    const row = rowAt(indexOf(state.route.id));
    if (row && row.outcome !== "running" && state.details?.row.outcome === "running") void load(); // it has ended
  });
  void load();

  return {
    element,
    update: () => (state.details?.row.id === state.route.id ? draw() : load()),
    close() {
      abort.abort();
      tab?.close?.();
      state.details = null;
      stop();
    },
    /** @param {KeyboardEvent} event */
    onKey(event) {
      const { details, route } = state;
      if (isWriting(event) || !details) return false;
      if (tab?.onKey?.(event)) return true;
      const target = TABS[Number(event.key) - 1];
      const id = { "[": details.session?.previous, "]": details.session?.next }[event.key];
      if (target) go(requestHref(route, route.id, target));
      else if (id) go(requestHref(route, id, route.tab));
      else if (event.key === "x") exportDialog(details);
      else return false;
      return true;
    },
  };
}

function back() {
  return h("a.back", { href: listHref(state.route) }, icon("back"), "Requests");
}

/** @param {Row} row */
function facts(row) {
  const {
    input_tokens: input,
    output_tokens: output,
    cache_read_tokens: read,
    cache_write_tokens: written,
    cost_nanodollars: cost,
    attempts = 1,
  } = row;
  const about = row.tokens_estimated ? "about " : "";
  return [
    pair("First byte", ms(row.first_byte_ms)),
    pair("Duration", row.outcome === "running" ? `${ms((row.seconds ?? 0) * 1000)}\u2026` : ms(row.total_ms)),
    pair("Input", about + count(input)),
    !!read &&
      pair("From cache", [count(read), h("span.soft", ` ${percent(read / ((input ?? 0) + read + (written ?? 0)))}`)]),
    !!written && pair("To cache", count(written)),
    pair("Output", about + count(output)),
    pair("Cost", dollars(cost), cost === null || cost === undefined ? "No price is known" : null),
    attempts > 1 && pair("Attempts", attempts),
    row.stop && pair("Stop", row.stop),
  ];
}
