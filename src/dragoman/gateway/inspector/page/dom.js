/** Elements from calls. Text becomes text nodes only, so nothing that a body contains can become markup. */

/**
 * Make an HTML element: `h("button.primary", { onclick: save }, "Save")`. Attributes may be left out.
 *
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T | `${T}.${string}`} spec the name of the element, and its classes
 * @param {...(Attributes | Child)} rest
 * @returns {HTMLElementTagNameMap[T]}
 */
export function h(spec, ...rest) {
  const [name, ...classes] = spec.split(".");
  const element = document.createElement(/** @type {T} */ (name));
  if (name === "button") element.setAttribute("type", "button");
  return fill(element, classes, rest);
}

/**
 * Make an SVG element.
 *
 * @template {keyof SVGElementTagNameMap} T
 * @param {T | `${T}.${string}`} spec
 * @param {...(Attributes | Child)} rest
 * @returns {SVGElementTagNameMap[T]}
 */
export function s(spec, ...rest) {
  const [name, ...classes] = spec.split(".");
  return fill(document.createElementNS("http://www.w3.org/2000/svg", /** @type {T} */ (name)), classes, rest);
}

/** @template {Element} E @param {E} element @param {string[]} classes @param {(Attributes | Child)[]} rest */
function fill(element, classes, rest) {
  if (classes.length) element.setAttribute("class", classes.join(" "));
  const [first, ...others] = rest;
  const hasAttributes = first?.constructor === Object;
  if (hasAttributes) {
    for (const [name, value] of Object.entries(first)) {
      if (typeof value === "function") element.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined && value !== false)
        element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  append(element, /** @type {Child[]} */ (hasAttributes ? others : rest));
  return element;
}

/** @param {Node} parent @param {Child[]} children */
function append(parent, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(parent, child);
    else if (child instanceof Node) parent.appendChild(child);
    else if (child !== null && child !== undefined && child !== false)
      parent.appendChild(document.createTextNode(String(child)));
  }
}

/**
 * Replace the children of an element. If one of them had the focus, the one at its place gets it.
 *
 * @template {Element} E
 * @param {E} parent
 * @param {...Child} children
 */
export function put(parent, ...children) {
  const focused = document.activeElement;
  const place =
    focused && parent.contains(focused) ? [...parent.querySelectorAll(focused.tagName)].indexOf(focused) : -1;
  parent.replaceChildren();
  append(parent, children);
  const next = focused?.isConnected ? focused : place >= 0 && parent.querySelectorAll(focused?.tagName ?? "")[place];
  if (place >= 0 && next instanceof HTMLElement) next.focus({ preventScroll: true });
  return parent;
}

/** @param {string} value @param {Attributes} [attributes] */
export function textField(value, attributes = {}) {
  return h("input", { type: "text", value, spellcheck: "false", autocomplete: "off", ...attributes });
}

let last = 0;

export function newId() {
  last += 1;
  return `i${last}`;
}

/** Whether a key event belongs to a field in which one writes. @param {Event} event */
export function isWriting({ target }) {
  return (
    target instanceof HTMLElement &&
    target.matches("textarea, select, input:not([type=checkbox], [type=radio], [type=range])")
  );
}

/** Call a function after some milliseconds without another call. @param {number} wait @param {() => void} call */
export function later(wait, call) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(call, wait);
  };
}
