// DOM helpers. Server data is inserted as text only: keys and reasons are untrusted.

export const $ = (id) => document.getElementById(id);

/** An element with properties (`class`, `text`, attributes, `on` for listeners) and children. */
export function el(tag, props = {}, ...children) {
  return setProps(document.createElement(tag), props, children);
}

/** The same for an SVG element. */
export function svg(tag, props = {}, ...children) {
  return setProps(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

function setProps(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Sets text only if it changed, so that selections and screen readers are not disturbed every second. */
export function setText(node, text, title) {
  const value = String(text);
  if (node.textContent !== value) node.textContent = value;
  if (title !== undefined && node.title !== title) node.title = title;
}

/** Makes the children of `list` match `items`, in order. Existing children are reused and keep their focus. */
export function keyed(list, items, keyOf, make, fill) {
  const known = new Map([...list.children].map((child) => [child.dataset.key, child]));
  let next = list.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let child = known.get(key);
    if (child) known.delete(key);
    else {
      child = make(item);
      child.dataset.key = key;
    }
    if (child === next) next = next.nextElementSibling;
    else list.insertBefore(child, next);
    fill?.(child, item);
  }
  for (const child of known.values()) child.remove();
}

/** Calls `run` after `millis` without another call. */
export function debounce(run, millis) {
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(run, millis);
  };
}
