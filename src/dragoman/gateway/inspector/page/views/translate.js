/** What another upstream would get: the recorded request in any dialect. Nothing is sent. */
import { requestPath } from "../api.js";
import { Comparison } from "../comparison.js";
import { h, later, put, textField } from "../dom.js";
import { fill, unrecorded } from "../part.js";
import { href, setParams } from "../route.js";
import { state } from "../state.js";
import { noteOf, partsOf } from "./bodies.js";

/** @param {Details} details @returns {View} */
export function translateTab(details) {
  const { id, dialect: from, upstream_dialect: sent } = details.row;
  const element = h("div.translate");
  if (!details.has.client_body)
    return {
      element: put(
        element,
        unrecorded("The body was", h("a.button", { href: href(["playground"]) }, "Paste a body in the playground")),
      ),
    };
  const result = h("div.result");
  const change = () => setParams(state.route, { to: select.value, model: model.value, note: null });
  const select = h("select", { onchange: change });
  const model = textField("", { placeholder: "as asked for", oninput: later(400, change) });
  put(
    element,
    h(
      "div.bar",
      h("label.choose", "As for ", select),
      h("label.choose", "Model ", model),
      h("span.soft", "Nothing is sent."),
      h("div.actions", h("a.button.small", { href: href(["playground"], { request: id }) }, "Open in the playground")),
    ),
    result,
  );
  /** @type {Comparison | undefined} */
  let comparison;
  let shown = "";

  function update() {
    const { params } = state.route;
    const all = state.server?.dialects ?? [];
    const query = {
      to: params.get("to") ?? all.find((each) => each !== sent && each !== from) ?? "",
      model: params.get("model") ?? "",
    };
    const key = `${query.to} ${query.model}`;
    if (key === shown) return comparison?.showNote(noteOf(params));
    shown = key;
    put(
      select,
      all.map((each) => h("option", { selected: each === query.to }, each)),
    );
    if (document.activeElement !== model) model.value = query.model;
    void fill(result, requestPath(id, "translate"), query, (/** @type {Bodies} */ bodies) => {
      comparison?.close();
      comparison = new Comparison(bodies, {
        ...partsOf(id, query),
        note: noteOf(params),
        onNote: (note) => setParams(state.route, { note }),
      });
      return comparison.element;
    });
  }
  update();
  return { element, update, close: () => comparison?.close(), onKey: (event) => comparison?.onKey(event) ?? false };
}
