/** Both bodies of a request, by message, side by side, and each change at its places. */
import { get, open, requestPath } from "../api.js";
import { Comparison } from "../comparison.js";
import { h, put } from "../dom.js";
import { fill, unrecorded } from "../part.js";
import { setParams } from "../route.js";
import { state } from "../state.js";
import { copyButton, saveButton } from "./notice.js";

/** @param {Details} details @returns {View} */
export function bodiesTab(details) {
  const { id } = details.row;
  const element = h("div.bodies");
  if (!details.has.client_body && !details.has.upstream_body)
    return {
      element: put(
        element,
        unrecorded("The bodies were", details.notes.length > 0 && "The summary lists what was changed."),
      ),
    };
  /** @type {Comparison | undefined} */
  let comparison;
  let shown = "?";

  function update() {
    const { params } = state.route;
    const attempt = params.get("attempt") ?? "";
    if (attempt === shown) return comparison?.showNote(noteOf(params));
    shown = attempt;
    void fill(element, requestPath(id, "bodies"), { attempt }, (/** @type {Bodies} */ bodies) => {
      comparison?.close();
      comparison = new Comparison(bodies, {
        ...partsOf(id, { attempt }),
        note: noteOf(params),
        place: params.get("place"),
        onNote: (note) => setParams(state.route, { note, place: null }),
        head: attemptSelect(details, attempt),
        canonical: () => /** @type {Promise<Canonical>} */ (get(requestPath(id, "canonical"), { attempt })),
        tools: (side) => tools(id, side, attempt),
      });
      return comparison.element;
    });
  }
  update();
  return { element, update, close: () => comparison?.close(), onKey: (event) => comparison?.onKey(event) ?? false };
}

/** @param {URLSearchParams} params */
export function noteOf(params) {
  return Number(params.get("note") ?? -1);
}

/** @param {string} id @param {Params} query */
export function partsOf(id, query) {
  return {
    section: (/** @type {number} */ number) => get(requestPath(id, `bodies/${number}`), query),
    value: async (/** @type {string} */ side, /** @type {string} */ path) =>
      (await get(requestPath(id, "value"), { side, path, ...query })).value,
  };
}

/** @param {string} id @param {"client" | "upstream"} side @param {string} attempt */
function tools(id, side, attempt) {
  const part = `${side}_request`;
  return [
    copyButton("Copy", async () => (await open(requestPath(id, "raw"), { part, attempt })).text()),
    curlButton("curl", id, side, attempt),
    saveButton("Save", () => [requestPath(id, "raw"), { part, attempt }, `${id}-${side}.json`]),
  ];
}

/** @param {string} label @param {string} id @param {"client" | "upstream"} side @param {string} attempt */
export function curlButton(label, id, side, attempt) {
  return copyButton(label, async () => (await get(requestPath(id, "curl"), { side, attempt })).text);
}

/** @param {Details} details @param {string} attempt */
export function attemptSelect(details, attempt) {
  const sent = details.attempts.filter((each) => each.url);
  const select = h(
    "select",
    { onchange: () => setParams(state.route, { attempt: select.value }) },
    sent.map((each, at) =>
      h(
        "option",
        { value: each.number, selected: attempt ? String(each.number) === attempt : at === sent.length - 1 },
        `${each.number} ${each.upstream}`,
      ),
    ),
  );
  return sent.length > 1 && h("label.choose", "Attempt ", select);
}
