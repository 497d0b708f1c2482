/** A request in any dialect, translated and checked as one writes. */
import { isAborted, open, post, reason, requestPath } from "../api.js";
import { Comparison } from "../comparison.js";
import { h, later, put, textField } from "../dom.js";
import { editor, findPlace, mistakeIn, placesOf } from "../editor.js";
import { actionSign, icon } from "../icon.js";
import { choices, nothing } from "../part.js";
import { setParams } from "../route.js";
import { state } from "../state.js";
import { longText, name, wire } from "../text.js";
import { act, copyButton } from "./notice.js";

const WAIT = 250; // milliseconds of silence before the text is translated
const EXAMPLE = {
  model: "claude-sonnet-4.5",
  max_tokens: 1024,
  tools: [{ name: "files.read", input_schema: { type: "object", properties: { path: { type: "string" } } } }],
  messages: [
    { role: "user", content: "What is in a.txt?" },
    { role: "assistant", content: [{ type: "tool_use", id: "toolu_1", name: "files.read", input: { path: "a.txt" } }] },
    { role: "user", content: [{ type: "tool_result", tool_use_id: "toolu_1", content: "" }] },
  ],
};
let draft = ""; // what is written, while another view is shown

export function playgroundView() {
  const soon = later(WAIT, () => void translate());
  const field = editor("Request", soon);
  const [from, to] = ["from", "to"].map((key) => {
    const select = h("select", { onchange: () => setParams(state.route, { [key]: select.value }) });
    return select;
  });
  const model = textField("", {
    placeholder: "as written",
    oninput: later(400, () => setParams(state.route, { model: model.value })),
  });
  const readAs = h("span.soft", { role: "status" });
  const findings = h("div.card.findings", { role: "region", "aria-label": "Findings" });
  const result = h("div.result");
  const views = h("div");
  const element = h(
    "section.playground",
    { "aria-label": "Playground" },
    h(
      "div.bar",
      h("h1", "Playground"),
      h("label.choose", "From ", from),
      h("label.choose", "to ", to),
      h("label.choose", "model ", model),
      readAs,
      h("span.soft", "Nothing is sent anywhere."),
      h(
        "div.actions",
        h("button.small", { onclick: () => write(JSON.stringify(EXAMPLE, null, 2)) }, "Example"),
        h("button.small", { onclick: () => write(pretty(field.area.value)) }, "Tidy"),
      ),
    ),
    h(
      "div.panes",
      h("div.left", field.element, findings),
      h("div.right", h("div.bar", h("h2", "The upstream gets"), views), result),
    ),
  );
  /** @type {Played | null} */
  let played = null;
  /** @type {Comparison | undefined} */
  let comparison;
  let abort = new AbortController();
  let shown = "";

  /** @param {string} text */
  function write(text) {
    field.write(text);
    void translate();
  }

  async function translate() {
    abort.abort();
    abort = new AbortController();
    draft = field.area.value;
    const { params } = state.route;
    try {
      played = draft.trim()
        ? await post(
            "playground",
            {
              from: params.get("from") ?? "",
              to: to?.value,
              body: draft,
              model: params.get("model") ?? "",
              settings: {},
            },
            abort.signal,
          )
        : null;
    } catch (error) {
      if (isAborted(error)) return;
      played = {
        bodies: null,
        translated: "",
        notes: [],
        breaches: [],
        upstream_breaches: [],
        from: "",
        error: { message: reason(error) },
      };
    }
    draw();
  }

  function draw() {
    put(readAs, played?.from && !state.route.params.get("from") && `read as ${played.from}`);
    drawFindings();
    comparison?.close();
    comparison = undefined;
    const as = state.route.params.get("as") ?? "sections";
    put(views, choices("Show", "as", { sections: "Side by side", text: "Body" }, as));
    if (!played?.bodies || played.error) {
      put(
        result,
        played
          ? nothing("Not translated yet", "The findings say what is missing.")
          : nothing("Paste a request at the left", "It is translated and checked as you write."),
      );
      return;
    }
    const refused = played.upstream_breaches;
    if (as === "sections") comparison = new Comparison(played.bodies, {});
    put(
      result,
      refused.length > 0 &&
        h(
          "div.card.findings",
          h("h2", "The upstream would refuse this", h("span.count", refused.length)),
          h(
            "ul",
            refused.map((each) => line(breach(each), null)),
          ),
        ),
      comparison?.element ?? [
        copyButton("Copy", () => played?.translated ?? ""),
        longText(pretty(played.translated), "Translated body"),
      ],
    );
  }

  function drawFindings() {
    const text = field.area.value;
    const [places, mistake] = [placesOf(text), mistakeIn(text)];
    const { error, breaches = [], bodies, notes = [] } = played ?? {};
    /** @type {[Finding, [number, number] | null][]} */
    const found = [];
    if (mistake && played)
      found.push([
        ["trouble", icon("failed"), "not JSON", `line ${field.lineOf(mistake.at) + 1}`, mistake.message],
        [mistake.at, mistake.at + 1],
      ]);
    else if (error)
      found.push([
        ["trouble", icon("failed"), "cannot be read", error.at ?? "", error.message],
        findPlace(places, error.at ?? ""),
      ]);
    for (const each of breaches) found.push([breach(each), findPlace(places, each.at)]);
    if (!mistake)
      for (const { rule, action, at, detail, client } of bodies?.notes ?? notes)
        found.push([["note", actionSign(action), rule, at, detail], findPlace(places, client[0] ?? at)]);
    const rank = { note: 0, warn: 1, trouble: 2 };
    field.setMarks(
      found
        .flatMap(([[tone], where]) => (where ? [{ at: where[0], tone }] : []))
        .sort((one, two) => rank[one.tone] - rank[two.tone]),
    );
    put(
      findings,
      played && [
        h("h2", "Findings", h("span.count", found.length)),
        found.length
          ? h(
              "ul",
              found.map(([each, where]) => line(each, where)),
            )
          : h("p.well", icon("check"), "The request breaks no rule, and nothing must be changed."),
      ],
    );
  }

  /** @param {Finding} finding @param {[number, number] | null} where */
  function line([tone, sign, rule, at, detail], where) {
    const content = [sign, h("code", rule), at && h("span.soft", " at ", name(at)), h("span.detail", wire(detail))];
    return h(
      "li",
      { class: tone },
      where ? h("button.plain", { onclick: () => field.select(...where) }, content) : content,
    );
  }

  function update() {
    const { params } = state.route;
    const dialects = state.server?.dialects ?? [];
    const target = params.get("to") ?? dialects.find((each) => each === "kiro");
    if (from)
      put(
        from,
        h("option", { value: "" }, "any dialect"),
        dialects.map((each) => h("option", { selected: each === params.get("from") }, each)),
      );
    if (to)
      put(
        to,
        dialects.map((each) => h("option", { selected: each === target }, each)),
      );
    if (document.activeElement !== model) model.value = params.get("model") ?? "";
    const key = ["from", "to", "model"].map((each) => params.get(each)).join(" ");
    if (key === shown) draw();
    else void translate();
    shown = key;
  }

  const request = state.route.params.get("request");
  field.write(draft);
  update();
  if (request) {
    void act(async () =>
      write(pretty(await (await open(requestPath(request, "raw"), { part: "client_request" })).text())),
    );
    setParams(state.route, { request: null });
  }
  return {
    element,
    update,
    close() {
      abort.abort();
      field.close();
      comparison?.close();
    },
    /** @param {KeyboardEvent} event */
    onKey: (event) => comparison?.onKey(event) ?? false,
  };
}

/** @param {Breach} breach @returns {Finding} */
function breach({ severity, rule, at, detail, evidence }) {
  const isError = severity === "error";
  return [isError ? "trouble" : "warn", icon(isError ? "failed" : "warning"), rule, at, `${detail} (${evidence})`];
}

/** @param {string} text */
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
