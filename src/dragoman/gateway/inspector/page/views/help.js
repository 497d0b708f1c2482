/** The overlay with the keys. */
import { h } from "../dom.js";
import { keepFlag, state } from "../state.js";
import { dialog } from "./notice.js";

/** @type {[title: string, keys: [string, string][]][]} */
const KEYS = [
  [
    "Everywhere",
    [
      ["?", "This help"],
      ["/", "To the filter"],
      ["g r", "Requests"],
      ["g o", "Overview"],
      ["g u", "Upstreams"],
      ["g k", "Keys"],
      ["g p", "Playground"],
      ["Esc", "Close, or back to the list"],
    ],
  ],
  [
    "List",
    [
      ["j k", "Next and previous request"],
      ["\u2193 \u2191", "The same, in the list"],
      ["Enter", "Open"],
    ],
  ],
  [
    "Request",
    [
      ["1 \u2026 8", "Summary, Bodies, Tools \u2026"],
      ["n p", "Next and previous change"],
      ["c", "Canonical form"],
      ["[ ]", "Previous and next request of the session"],
      ["x", "Export"],
    ],
  ],
  [
    "Timeline",
    [
      ["\u2190 \u2192", "Previous and next moment, with the scrubber"],
      ["Space", "Play and pause"],
      ["+ - 0", "Zoom in, out, all"],
    ],
  ],
  [
    "Trees",
    [
      ["\u2193 \u2191", "Next and previous line"],
      ["\u2192 \u2190", "Unfold and fold"],
      ["Enter", "The change at this line"],
    ],
  ],
];

/** @param {() => void} end ends the session */
export function helpDialog(end) {
  const single = h("input", {
    type: "checkbox",
    checked: state.singleKeys,
    onchange: () => keepFlag("single-keys", (state.singleKeys = single.checked)),
  });
  const kbd = (/** @type {string} */ key) => key.split(" ").map((one) => (one === "\u2026" ? one : h("kbd", one)));
  dialog(
    "Keys",
    [
      h(
        "div.keytable",
        KEYS.map(([title, keys]) =>
          h(
            "section",
            h("h3", title),
            h(
              "dl",
              keys.map(([key, what]) => h("div", h("dt", kbd(key)), h("dd", what))),
            ),
          ),
        ),
      ),
      h("label.check", single, "Keys of one letter (turn off for speech input)"),
      h("p", h("button.small", { onclick: end }, "End this session")),
    ],
    "Close",
  );
}
