/** Addresses: what stands behind `#` names a view, so that the back button and copied addresses work. */

export const TABS = ["summary", "bodies", "tools", "timeline", "attempts", "cache", "translate", "raw"];
export const VIEWS = /** @type {const} */ (["requests", "overview", "upstreams", "keys", "playground"]);

/** Read an address. What is not known leads to the list. @param {string} hash @returns {Route} */
export function parse(hash) {
  const [path = "", query] = hash.replace(/^#\/?/, "").split(/\?(.*)/);
  const [view, id = "", tab = ""] = path
    .split("/")
    .map((part) => decodeURIComponent(part.replace(/%(?![\da-f]{2})/gi, "%25")));
  const known = VIEWS.find((each) => each === view) ?? "requests";
  return {
    view: known,
    id: known === "requests" ? id : "",
    tab: TABS.includes(tab) ? tab : "summary",
    params: new URLSearchParams(query),
  };
}

/** @param {Params} params */
export function queryOf(params) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params))
    if (value !== null && value !== undefined && value !== "") query.set(name, String(value));
  return query.size ? `?${query}` : "";
}

/** @param {string[]} path @param {Params} [params] */
export function href(path, params = {}) {
  return `#/${path.map(encodeURIComponent).join("/")}${queryOf(params)}`;
}

/** @param {Route} route @param {string} id @param {string} [tab] @param {Params} [params] */
export function requestHref(route, id, tab = "summary", params = {}) {
  return href(["requests", id, tab], { filter: route.params.get("filter"), ...params });
}

/** @param {Route} route */
export function listHref(route) {
  return href(["requests"], { filter: route.params.get("filter") });
}

/** Go to an address; with `replace` the current one is forgotten. @param {string} address @param {boolean} [replace] */
export function go(address, replace = false) {
  if (address === location.hash) return;
  history[replace ? "replaceState" : "pushState"](null, "", address);
  dispatchEvent(new HashChangeEvent("hashchange"));
}

/** @param {Route} route @param {Params} changes */
export function setParams({ view, id, tab, params }, changes) {
  go(href(id ? [view, id, tab] : [view], { ...Object.fromEntries(params), ...changes }), true);
}
