// Elements. Whatever the server says goes in as text: keys and reasons are written by strangers.

export const $ = (id) => document.getElementById(id);

/** An element with properties (`class`, `text`, attributes, `on` for listeners) and children. */
export function el(tag, props = {}, ...children) {
  return dress(document.createElement(tag), props, children);
}

/** The same for a part of a drawing. */
export function svg(tag, props = {}, ...children) {
  return dress(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

function dress(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Writes only what changed, so that a selection or a screen reader is not disturbed once a second. */
export function say(node, text, title) {
  const said = String(text);
  if (node.textContent !== said) node.textContent = said;
  if (title !== undefined && node.title !== title) node.title = title;
}

/** Makes the children of `list` those of `items`, in their order; one that is there already stays, and so does its focus. */
export function keyed(list, items, keyOf, make, fill) {
  const known = new Map([...list.children].map((child) => [child.dataset.key, child]));
  let place = list.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let child = known.get(key);
    if (child) known.delete(key);
    else {
      child = make(item);
      child.dataset.key = key;
    }
    if (child === place) place = place.nextElementSibling;
    else list.insertBefore(child, place);
    fill?.(child, item);
  }
  for (const child of known.values()) child.remove();
}

/** Calls `run` once things have been quiet for so long. */
export function calmly(run, millis) {
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(run, millis);
  };
}
