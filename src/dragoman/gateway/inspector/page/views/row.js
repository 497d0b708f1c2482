/** A row of the list. One element for all widths: the style decides whether it is one line or three. */
import { h, put } from "../dom.js";
import { count, dollars, ms, percent, plural, short, time } from "../format.js";
import { badge, statusPill } from "../icon.js";
import { requestHref } from "../route.js";
import { state } from "../state.js";
import { name, oneLine } from "../text.js";

const COLUMNS = {
  time: "Time",
  status: "Status",
  model: "Model",
  route: "Dialects",
  client: "Client",
  first: "First byte",
  total: "Duration",
  in: "Input",
  cached: "Cache",
  out: "Output",
  cost: "Cost",
  tools: "Tool calls",
  notes: "Changes",
  badges: "Remarks",
};

export function titleRow() {
  return h(
    "div.row.titles",
    { role: "row", "aria-rowindex": 1 },
    Object.entries(COLUMNS).map(([key, title]) => h("span", { class: `c-${key}`, role: "columnheader" }, title)),
  );
}

/** @param {Row | null} row null for one that is not loaded yet */
export function drawRow(row) {
  const isOpen = row !== null && row.id === state.route.id;
  const element = h("div", {
    class: `row${isOpen ? " open" : ""}${row?.outcome === "running" ? " live" : ""}`,
    role: "row",
    "data-id": row?.id,
  });
  if (!row) return put(element, h("span.c-model", { role: "gridcell" }, "\u2026"));
  const { tools = [], rules = [] } = row;
  const link = h(
    "a",
    {
      href: requestHref(state.route, row.id, state.route.id ? state.route.tab : "summary"),
      tabindex: -1,
      "aria-current": isOpen && "true",
    },
    modelText(row),
    h("span.hidden", label(row)),
  );
  const tokens = (/** @type {Maybe} */ value, share = "") =>
    !!value && h("span", { title: `${count(value)} tokens${share}` }, short(value));
  const unique = [...new Set(tools)];
  /** @type {{[column in keyof typeof COLUMNS]: Child}} */
  const cells = {
    time: time(row.at ?? row.began),
    status: statusPill(row),
    model: link,
    route: routeText(row),
    client: name(row.key || row.client || ""),
    first: row.first_byte_ms && ms(row.first_byte_ms),
    total: ms(row.outcome === "running" ? (row.seconds ?? 0) * 1000 : row.total_ms),
    in: tokens(row.input_tokens),
    cached: tokens(row.cache_read_tokens, `, ${percent(row.cache_share)} of the input`),
    out: tokens(row.output_tokens),
    cost: row.cost_nanodollars && dollars(row.cost_nanodollars),
    tools: h(
      "span",
      { title: oneLine(unique.join(", "), 400) },
      unique.slice(0, 2).map((tool, at) => [at > 0 && ", ", name(tool)]),
      unique.length > 2 && h("span.soft", ` +${unique.length - 2}`),
    ),
    notes: !!row.notes && h("span.count", { title: rules.join(", ") }, row.notes),
    badges: row.state ?? (row.badges ?? []).map(badge),
  };
  return put(
    element,
    Object.entries(cells).map(([key, content]) => h("span", { class: `c-${key}`, role: "gridcell" }, content)),
  );
}

/** What a row shows, so that it is drawn again when that changes. @param {Row | null} row @param {number} index */
export function rowKey(row, index) {
  return row
    ? [
        row.id,
        state.route.params.get("filter"),
        row.id === state.route.id,
        state.route.id && state.route.tab,
        row.state,
        row.seconds,
        row.output_tokens,
      ].join(" ")
    : `${index}`;
}

/** @param {Row} row */
export function modelText({ model, used_model: used, operation, path }) {
  return [
    name(model || operation || path, "model"),
    used && used !== model && [h("span.to", "\u2192"), name(used, "used")],
  ];
}

/** @param {Row} row */
export function routeText({ dialect, upstream = "", upstream_dialect: to, method, path }) {
  if (!dialect && !upstream) return h("span.soft", `${method} ${oneLine(path, 40)}`);
  return [
    h("span.client", dialect || "?"),
    h("span.to", "\u2192"),
    upstream ? h("span.upstream", name(upstream), to && to !== upstream && ` (${to})`) : h("span.soft", "no upstream"),
  ];
}

/** @param {Row} row */
function label({ outcome, status, at, began, dialect, upstream, notes, badges }) {
  return [
    "",
    outcome === "running" ? "running" : `status ${status || "none"}, ${outcome}`,
    time(at ?? began),
    upstream && `${dialect} to ${oneLine(upstream, 40)}`,
    notes && plural(notes, "change"),
    ...(badges ?? []),
  ]
    .filter((each) => each !== undefined && each !== 0)
    .join(", ");
}
