/** Tool calls with their results. */
import { requestPath } from "../api.js";
import { h, put } from "../dom.js";
import { bytes, ms, plural } from "../format.js";
import { badge, icon, tone } from "../icon.js";
import { fill, nothing } from "../part.js";
import { requestHref } from "../route.js";
import { state } from "../state.js";
import { longText, name, oneLine, wire } from "../text.js";
import { Tree } from "../tree.js";
import { copyButton } from "./notice.js";

/** @param {Details} details @returns {View} */
export function toolsTab({ row }) {
  const element = h("div.tools");
  void fill(element, requestPath(row.id, "tools"), {}, (/** @type {Calls} */ { calls, counts }) => {
    if (!calls.length)
      return nothing(
        "No tool calls",
        "Neither the conversation nor the answer has any.",
        row.recorded !== "full" && "Only recorded requests show them: turn \u201cBodies\u201d on at the top right.",
      );
    const rows = calls.map((call) => ({ call, element: rowOf(call, row.id) }));
    const hidden = rows.filter(({ call }) => !problems(call).length);
    const box = h("input", {
      type: "checkbox",
      onchange: () => hidden.forEach((each) => (each.element.hidden = box.checked)),
    });
    const part = (/** @type {string} */ place, /** @type {string} */ title) => {
      const own = rows.filter(({ call }) => call.place === place);
      return (
        own.length > 0 &&
        h(
          "section",
          h("h2", title, h("span.count", own.length)),
          h(
            "ul.calls",
            own.map((each) => each.element),
          ),
        )
      );
    };
    return [
      h(
        "div.bar",
        plural(counts.calls, "call"),
        counts.unpaired > 0 && [badge("unpaired"), h("span.soft", counts.unpaired)],
        h("div.actions", h("label.check", box, `Only problems (${rows.length - hidden.length})`)),
      ),
      part("answer", "In this answer"),
      part("history", "In the conversation before"),
    ];
  });
  return { element };
}

/** @param {Call} call */
function problems(call) {
  return [...new Set([...call.flags, ...(call.valid === false ? ["invalid"] : [])])];
}

/** @param {Call} call @param {string} id */
function rowOf(call, id) {
  const { result } = call;
  const found = problems(call);
  const worst = found.some((word) => tone(word) === "trouble") ? "trouble" : found.length ? "warn" : "well";
  const isOk = result?.status === "ok";
  const more = h("div.callbody");
  /** @type {HTMLDetailsElement} */
  const details = h(
    "details",
    { ontoggle: () => details.open && !more.firstChild && put(more, body(call, id)) },
    h(
      "summary",
      icon(worst === "well" ? "check" : "warning", worst),
      h(
        "span.callname",
        name(call.name || (call.arguments ? "(no name)" : "result without a call")),
        call.alias && call.alias !== call.name && [h("span.to", "\u2192"), name(call.alias, "upstream")],
      ),
      h(
        "span.ids",
        h("code.client", oneLine(call.client_id || "no id", 60)),
        call.upstream_id &&
          call.upstream_id !== call.client_id && [
            h("span.to", "\u2192"),
            h("code.upstream", oneLine(call.upstream_id, 60)),
          ],
      ),
      h("code.arguments", oneLine(call.arguments, 160)),
      result
        ? h(
            "span",
            { class: `outcome ${isOk ? "well" : "trouble"}` },
            icon(isOk ? "check" : "failed"),
            `${result.status}, ${bytes(result.bytes)}`,
          )
        : h("span.outcome.soft", call.place === "answer" ? "no result yet" : "no result"),
      h("span.flags", found.map(badge)),
    ),
    more,
  );
  return h("li", { class: `call ${worst}` }, details);
}

/** @param {Call} call @param {string} id */
function body(
  { place, path, t, valid, problems: breaches, arguments: text, tree, is_complete: isComplete, result },
  id,
) {
  return [
    h(
      "p.soft",
      place === "history"
        ? [
            "In the body at ",
            h("a", { href: requestHref(state.route, id, "bodies", { place: path }) }, h("code", path)),
          ]
        : ["In the answer at ", h("code", path)],
      t !== null && t !== undefined && `, ${ms(t)} after the request`,
    ),
    valid
      ? h("p.well", icon("check"), "The arguments fit the declared schema.")
      : valid !== false && h("p.soft", "The tool is not declared, so its arguments cannot be checked."),
    h(
      "ul.problems",
      (breaches ?? []).map((each) =>
        h("li", icon("failed"), h("code", each.at || "arguments"), ": ", wire(each.detail)),
      ),
    ),
    h(
      "div.pair",
      h(
        "section",
        h(
          "h3",
          "Arguments",
          copyButton("Copy", () => text),
        ),
        text ? longText(text, "Arguments as text") : h("p.none", "empty"),
      ),
      h(
        "section",
        h("h3", "As a tree"),
        tree === null || tree === undefined
          ? h("p.none", isComplete === false ? "The arguments are not complete" : "The arguments are not JSON")
          : new Tree(tree, { label: "Arguments" }).element,
      ),
    ),
    result &&
      h(
        "section",
        h(
          "h3",
          "Result",
          h("code", result.path),
          result.request && h("a", { href: requestHref(state.route, result.request) }, "in the next request"),
          copyButton("Copy", () => result.text),
        ),
        result.text ? longText(result.text, "Result") : h("p.none", "no text"),
      ),
  ];
}
