/** What leaves the page. */
import { post, requestPath } from "../api.js";
import { h, put, textField } from "../dom.js";
import { icon } from "../icon.js";
import { longText, wire } from "../text.js";
import { act, dialog, saveButton } from "./notice.js";

/** @param {Details} details */
export function exportDialog({ row: { id }, has }) {
  const story = textField(`case-${id.slice(-8)}`);
  const faults = h("input", { type: "checkbox" });
  const result = h("div.replayed", { role: "status" });
  const replay = h(
    "button.small",
    {
      onclick: () =>
        act(async () => {
          put(result, "Running\u2026");
          const found = /** @type {Replayed} */ (
            await post(requestPath(id, "replay"), { faults: faults.checked }).finally(() => put(result))
          );
          put(
            result,
            h(
              "p",
              { class: found.same ? "well" : "warn" },
              icon(found.same ? "check" : "warning"),
              `${found.same ? "The same answer as" : "Another answer than"} recorded, with status ${found.status}`,
            ),
            h(
              "ul",
              found.differences.map((each) => h("li", wire(each))),
            ),
            found.answer && longText(found.answer, "Answer of the replay"),
          );
        }),
    },
    icon("play"),
    "Replay",
  );
  const content = has.client_body
    ? [
        part(
          "Report",
          "One HTML file for a bug report. Secrets are masked; read it before you send it.",
          saveButton("Save the report", () => [requestPath(id, "report"), {}, `${id}.html`]),
        ),
        part(
          "Story",
          "A folder for the tests: request, reply and stream in both dialects.",
          h("label.choose", "Name ", story),
          saveButton("Save the story", () => [
            requestPath(id, "story"),
            { name: story.value },
            `${story.value || "story"}.zip`,
          ]),
        ),
        part(
          "Replay",
          "Sends the request through this configuration to a simulator that answers as recorded.",
          h("label.check", faults, "With the recorded failures"),
          replay,
        ),
        result,
      ]
    : h("p.hint", icon("warning"), "The bodies of this request were not recorded.");
  dialog("Export", content, "Close");
}

/** @param {string} title @param {string} words @param {...Child} content */
function part(title, words, ...content) {
  return h("section", h("h3", title), h("p.soft", words), h("div.bar", content));
}
