// Parts that several pages have: tables, tiles, badges, numbers.

import { fill, h } from "./dom.js";

export const orDash = (value) => (value === null || value === undefined || value === "" ? "–" : value);
export const whole = (value) => (value === null || value === undefined ? null : Math.round(value));
export const count = (value) => (value === null || value === undefined ? "–" : Number(value).toLocaleString("en-US"));

export function bytes(value) {
  if (value === null || value === undefined) return null;
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = Math.min(4, Math.floor(Math.log10(Math.max(1, value)) / 3));
  return `${(value / 1000 ** power).toFixed(power ? 1 : 0)} ${units[power]}`;
}

export const percent = (share) => (share === null || share === undefined ? null : `${Math.round(share * 100)} %`);

export function age(ms) {
  if (ms === null || ms === undefined) return null;
  const s = Math.max(0, ms) / 1000;
  if (s < 1) return `${Math.round(ms)} ms`;
  if (s < 120) return `${s.toFixed(s < 10 ? 1 : 0)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  return s < 172800 ? `${(s / 3600).toFixed(1)} h` : `${Math.round(s / 86400)} days`;
}

export function moment(ms) {
  if (ms === null || ms === undefined || ms < 0) return "–";
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return String(ms);
  const pad = (value, length = 2) => String(value).padStart(length, "0");
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}.${pad(at.getMilliseconds(), 3)}`;
}

// Characters that are invisible, or that turn the text around them, are written as their codes.
export const visible = (text) =>
  text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g, (it) => `\\u${it.charCodeAt(0).toString(16).padStart(4, "0")}`);

export const tile = (title, value, note = "", isBad = false, extra = null) =>
  h("div", { class: isBad ? "tile bad" : "tile" }, h("small", {}, title), h("b", {}, String(value)), h("span", {}, note), extra);
export const badge = (text, kind = "bad") => h("span", { class: `badge ${kind}` }, text);
export const cells = (values) => values.map((value) => h("td", {}, orDash(value)));
export const numbers = (values) => values.map((value) => h("td", { class: "number" }, orDash(value)));

// Titles that begin with "#" stand above numbers.
export const table = (titles, rows, attributes = {}) =>
  h("div", { class: "scroll" }, h("table", attributes,
    h("thead", {}, h("tr", {}, titles.map((title) => h("th", { class: title.startsWith("#") ? "number" : null }, title.replace(/^#/, ""))))),
    h("tbody", {}, rows)));

export const hint = (text) => h("p", { class: "hint" }, text);
export const problems = (list) => (list ?? []).slice(0, 8).map((text) => h("p", { class: "problem" }, visible(text)));

// A row that opens something, by mouse or keyboard.
export function linkRow(key, title, open, ...children) {
  return h("tr", { class: "link", tabindex: "0", title, "data-key": key,
    on: { click: open, keydown: (event) => { if (event.key === "Enter") { event.preventDefault(); open(event); } } } }, children);
}

// Replaces the contents and keeps the focus on the row or field that had it.
export function refill(element, ...children) {
  const key = element.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  fill(element, children);
  if (key !== undefined) element.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

export function choice(label, options, value, onChange) {
  return h("select", { "aria-label": label, title: label, on: { change: (event) => onChange(event.target.value) } },
    options.map(([name, text]) => h("option", { value: String(name), selected: String(name) === String(value) }, text)));
}

export function field(label, value, onEnter, attributes = {}) {
  return h("label", {}, label, h("input", { "aria-label": label, value: String(value ?? ""), autocomplete: "off", spellcheck: "false", ...attributes,
    on: { keydown: (event) => event.key === "Enter" && onEnter(event.target.value), ...(attributes.on ?? {}) } }));
}

// Tabs inside a page.
export const subtabs = (names, chosen, open) =>
  h("nav", { class: "sub", role: "tablist" }, Object.entries(names).map(([name, title]) =>
    h("button", { role: "tab", "data-sub": name, "aria-selected": String(name === chosen), on: { click: () => open(name) } }, title)));

export const back = (text, open) => h("button", { class: "back", title: "Back (Escape)", on: { click: open } }, `← ${text}`);
