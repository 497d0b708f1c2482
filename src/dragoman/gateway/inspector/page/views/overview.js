/** Requests, tokens, cost, errors and times over time. */
import { chart, legend } from "../chart.js";
import { h, put } from "../dom.js";
import { count, dollars, ms, percent, plural, short } from "../format.js";
import { choices, fill, nothing, table } from "../part.js";
import { state } from "../state.js";
import { name } from "../text.js";

const SPANS = { 3600: "1 hour", 21600: "6 hours", 86400: "24 hours", 604800: "7 days", 2592000: "30 days" };
const BYS = { all: "all", model: "by model", upstream: "by upstream", key: "by key" };
/** @type {[Sum, string, number][]} */
const TOKENS = [
  ["input_tokens", "input", 0],
  ["cache_read_tokens", "from cache", 2],
  ["cache_write_tokens", "to cache", 3],
  ["output_tokens", "output", 1],
];
const TONES = 8; // colours; further groups share the last one
const [RED, FRESH] = [8, 15_000]; // the colour of errors; milliseconds after which the numbers are loaded again

export function overviewView() {
  const content = h("div.charts");
  const source = h("span.soft");
  const chosen = h("div.bar");
  const element = h(
    "section.overview",
    { "aria-label": "Overview" },
    h("div.bar", h("h1", "Overview"), chosen, h("div.actions", source)),
    content,
  );
  /** @type {{close: () => void}[]} */
  let charts = [];
  let query = { since: "", by: "" };

  function update() {
    const { params } = state.route;
    query = { since: params.get("since") ?? "86400", by: params.get("by") ?? "all" };
    put(chosen, choices("Time span", "since", SPANS, query.since), choices("Grouped by", "by", BYS, query.by));
    load();
  }

  function load() {
    void fill(content, "overview", query, (/** @type {Overview} */ overview) => {
      close();
      put(source, overview.source === "ledger" ? "from the ledger" : "from memory: a store keeps more");
      const parts = draw(overview);
      charts = parts.charts;
      return parts.content;
    });
  }

  function close() {
    for (const each of charts) each.close();
  }

  const timer = setInterval(() => {
    const isUsed = content.matches(":hover, :focus-within, :has(details[open])");
    if (!document.hidden && !isUsed && state.link === "live") load();
  }, FRESH);
  update();
  return {
    element,
    update,
    close() {
      clearInterval(timer);
      close();
    },
  };
}

/** @param {Group | undefined} group @param {Sum} field */
function sum(group, field) {
  return (group?.[field] ?? []).reduce((all, value) => all + (value ?? 0), 0);
}

/** @param {Overview} overview */
function draw({ groups, times, step, by, source }) {
  const all = (/** @type {Sum} */ field) => groups.reduce((whole, group) => whole + sum(group, field), 0);
  const requests = all("requests");
  if (!requests)
    return {
      charts: [],
      content: nothing(
        "No requests in this time",
        source === "memory"
          ? "Only the last requests are remembered. A store of accounts keeps all of them."
          : "Choose a longer time.",
      ),
    };
  const [only, other] = groups;
  const isOne = !other;
  /** @param {(group: Group) => (number | null)[]} values @returns {Series[]} */
  const each = (values) =>
    groups.map((group, at) => ({
      label: group.label || group.name || "none",
      tone: Math.min(at, TONES - 1),
      values: values(group),
    }));
  /** @param {"first_byte_ms" | "total_ms"} field @returns {Series[]} */
  const spread = (field) =>
    isOne
      ? /** @type {const} */ (["p50", "p95", "p99"]).map((level, at) => ({
          label: level,
          tone: [0, 1, 4][at],
          values: only?.[field][level] ?? [],
        }))
      : each((group) => group[field].p95);
  const tokens = isOne
    ? TOKENS.map(([field, label, tone]) => ({ label, tone, values: only?.[field] ?? [] }))
    : each((group) => times.map((_, at) => TOKENS.reduce((whole, [field]) => whole + group[field][at], 0)));
  const errors = each((group) => group.errors).map((series) =>
    isOne ? { ...series, label: "errors", tone: RED } : series,
  );
  const late = isOne ? "" : ", 95th percentile";
  const charts = /** @type {[string, boolean, Series[], (value: number | null) => string, string, boolean][]} */ ([
    ["Requests", false, each((group) => group.requests), short, count(requests), false],
    ["Errors", false, errors, short, `${count(all("errors"))} (${percent(all("errors") / requests)})`, false],
    ["Tokens", false, tokens, short, short(TOKENS.reduce((whole, [field]) => whole + all(field), 0)), isOne],
    ["Cost", false, each((group) => group.cost_nanodollars), dollars, dollars(all("cost_nanodollars")), false],
    [`First byte${late}`, true, spread("first_byte_ms"), ms, "", isOne],
    [`Duration${late}`, true, spread("total_ms"), ms, "", isOne],
  ]).map(([title, isLines, series, format, total, hasLegend]) =>
    chart({ title, isLines, times, step, series, format, total, hasLegend }),
  );
  const unpriced = all("unpriced");
  const sums = () =>
    h(
      "section.card",
      h("h2", BYS[/** @type {"model"} */ (by)]),
      table(
        `Sums ${by}`,
        [by, "Requests", "Errors", "Input", "From cache", "Output", "Cost"],
        groups.map((group) => [
          name(group.label || group.name || "none"),
          .../** @type {Sum[]} */ (["requests", "errors", "input_tokens", "cache_read_tokens", "output_tokens"]).map(
            (field) => count(sum(group, field)),
          ),
          dollars(sum(group, "cost_nanodollars")),
        ]),
      ),
    );
  return {
    charts,
    content: [
      !isOne && legend(each(() => [])),
      h(
        "div.chartgrid",
        charts.map(({ element }) => element),
      ),
      unpriced > 0 && h("p.hint", `${plural(unpriced, "request")} had no known price: not in the cost.`),
      !isOne && sums(),
    ],
  };
}
