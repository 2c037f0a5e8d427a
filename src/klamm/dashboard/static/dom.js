// Builds elements. Text goes into the page as text nodes only, so nothing that a cluster sends can become markup.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === "class") element.className = value;
    else if (name === "style") for (const [key, item] of Object.entries(value)) element.style.setProperty(key, item);
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) append(element, child);
    else if (child !== null && child !== undefined && child !== false) {
      element.append(child instanceof Node ? child : document.createTextNode(String(child)));
    }
  }
}

export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

export const milliseconds = (value) =>
  value >= 10_000 ? `${(value / 1000).toFixed(1)} s` : value >= 100 || Number.isInteger(value) ? `${Math.round(value)} ms` : `${value.toFixed(1)} ms`;

export const list = (items) => (items && items.length ? items.join(", ") : "none");
