// Making elements. Nothing here or elsewhere sets HTML from text: whatever a topic, a record or an error holds arrives as text.

const SVG = "http://www.w3.org/2000/svg";

// An element with attributes and children. `on...` are listeners, `dataset` and `style` objects, null and false are left out.
export function h(tag, attributes = {}, ...children) {
  return furnish(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return furnish(document.createElementNS(SVG, tag), attributes, children);
}

function furnish(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name === "style") for (const [property, text] of Object.entries(value)) element.style.setProperty(property, text);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// Replaces the content, unless it is unchanged, so that focus, selection and screen readers are not disturbed. An element that has
// the focus and a `data-key` keeps the focus. True if something changed.
export function replace(place, ...children) {
  const draft = h("div", {}, ...children);
  const written = draft.innerHTML;
  if (written === place.shown) return false;
  const key = place.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  place.replaceChildren(...draft.childNodes);
  place.shown = written;
  if (key) place.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
  return true;
}

export function byId(id) {
  return document.getElementById(id);
}
