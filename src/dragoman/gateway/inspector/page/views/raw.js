/** The bytes as they were: as text, and in hexadecimal. */
import { open, requestPath } from "../api.js";
import { h, put } from "../dom.js";
import { bytes } from "../format.js";
import { choices, fill, nothing, unrecorded } from "../part.js";
import { state } from "../state.js";
import { longText } from "../text.js";
import { attemptSelect, curlButton } from "./bodies.js";
import { saveButton } from "./notice.js";

const PARTS = {
  client_request: "Client\u2019s request",
  upstream_request: "Upstream\u2019s request",
  upstream_response: "Upstream\u2019s response",
  client_response: "Client\u2019s response",
};
const MOST_HEX = 128 * 1024; // bytes

/** @param {Details} details @returns {View} */
export function rawTab(details) {
  const { id } = details.row;
  const element = h("div.raw");
  if (!details.has.client_body && !details.has.upstream_body)
    return { element: put(element, unrecorded("The bytes were")) };
  const content = h("div");
  let shown = "";

  function update() {
    const { params } = state.route;
    const [part, attempt, as] = [
      params.get("part") ?? "client_request",
      params.get("attempt") ?? "",
      params.get("as") ?? "text",
    ];
    if (shown === `${part} ${attempt} ${as}`) return;
    shown = `${part} ${attempt} ${as}`;
    const isUpstream = part.startsWith("upstream");
    const size = h("span.soft");
    put(
      element,
      h(
        "div.bar",
        choices("Part", "part", PARTS, part),
        choices("As", "as", { text: "Text", hex: "Hex" }, as),
        isUpstream && attemptSelect(details, attempt),
        size,
        h(
          "div.actions",
          curlButton("Copy as curl", id, isUpstream ? "upstream" : "client", attempt),
          saveButton("Save", () => [requestPath(id, "raw"), { part, attempt }, `${id}-${part}.bin`]),
        ),
      ),
      content,
    );
    void fill(
      content,
      requestPath(id, "raw"),
      { part, attempt },
      (data) => {
        put(size, bytes(data.length));
        if (!data.length)
          return nothing("No bytes", part.endsWith("response") && "There was no response, or it was not kept.");
        return [
          longText(as === "hex" ? hex(data.subarray(0, MOST_HEX)) : new TextDecoder().decode(data), "Bytes"),
          as === "hex" &&
            data.length > MOST_HEX &&
            h("p.soft", `The first ${bytes(MOST_HEX)}. Save the file to see the rest.`),
        ];
      },
      async (...all) => new Uint8Array(await (await open(...all)).arrayBuffer()),
    );
  }
  update();
  return { element, update };
}

/** Lines of 16 bytes: place, numbers, text. @param {Uint8Array} data */
function hex(data) {
  const lines = [];
  for (let at = 0; at < data.length; at += 16) {
    const line = [...data.subarray(at, at + 16)];
    const numbers = line.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = line.map((byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : "\u00b7")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${numbers.padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}
