// Traced requests, slowest first, each with its waterfall: the phases, and the waits with the request that ended them.

import { h } from "./dom.js";
import { refill } from "./parts.js";

const PHASES = [
  ["request_queue_ms", "request_queue", "request queue"],
  ["local_ms", "local", "handler"],
  ["remote_ms", "remote", "waits"],
  ["response_order_ms", "response_order", "earlier responses"],
  ["response_queue_ms", "response_queue", "response queue"],
  ["send_ms", "response_send", "send"],
];
const MOST = 50;
const EVERY_MS = 2_000;
const OFF = "No request is traced. Set klamm.request.trace.sample, for example: klamm config alter --broker-defaults --set klamm.request.trace.sample=100";
const ms = (value) => `${value.toFixed(value >= 10 ? 1 : 3)} ms`;
const place = (named) => (named.partition < 0 ? named.topic : `${named.topic}-${named.partition}`);
const keyOf = (trace) => `${trace.broker_id}/${trace.at_ms}/${trace.sequence}`;

const list = h("div", { id: "slow-requests" });
const words = h("input", { type: "search", title: "API, client, topic or error", size: 28, "aria-label": "Filter traces", on: { input: () => changed() } });
const polls = h("input", { type: "checkbox", on: { change: () => changed() } });
const section = h("section", {},
  h("h2", {}, "Traced requests, slowest first"),
  h("p", { class: "hint" }, h("label", {}, "API, client, topic or error", words), " ", h("label", {}, polls, " with fetches that waited for data")),
  list);
const opened = new Set();
let asked = 0;
let answer = { traces: [], problem: null };

/** The part of the address that belongs to the section: the filter, its checkbox, and the opened traces. */
export const traces = {
  onState: () => {},
  state: () => ({ find: words.value, waited: polls.checked ? 1 : "", open: [...opened].join() }),
  restore(fields) {
    words.value = fields.find ?? "";
    polls.checked = fields.waited === "1";
    opened.clear();
    for (const key of (fields.open ?? "").split(",")) if (/^\d+\/\d+\/\d+$/.test(key)) opened.add(key);
    if (asked) show(); // else the first answer does
  },
};

function changed() {
  show();
  traces.onState();
}

/** Return the section. It reads the traces itself, at most every two seconds while it is shown. */
export function slowRequests() {
  if (Date.now() - asked >= EVERY_MS) {
    asked = Date.now();
    read();
  }
  return section;
}

async function read() {
  try {
    answer = await (await fetch("api/traces")).json();
  } catch {
    return; // the tab shows that the server does not answer
  }
  show();
}

const isPoll = (trace) => trace.waits.some((wait) => wait.purgatory === "Fetch");
const text = (trace) => [trace.api, trace.client_id, trace.error, trace.outcome, ...trace.partitions.map(place)].join(" ").toLowerCase();

function show() {
  const wanted = words.value.trim().toLowerCase();
  const traces = answer.traces
    .filter((trace) => (polls.checked || !isPoll(trace)) && text(trace).includes(wanted))
    .sort((a, b) => b.total_ms - a.total_ms)
    .slice(0, MOST);
  refill(list,
    answer.problem ? h("p", { class: "hint" }, answer.problem) : null,
    traces.length ? traces.map(card) : h("p", { class: "hint" }, answer.traces.length ? "No traced request matches." : OFF));
}

function card(trace) {
  const key = keyOf(trace);
  const details = h("details", { class: "trace", open: opened.has(key) },
    h("summary", { "data-key": key }, h("b", {}, `${trace.api} v${trace.api_version}`), ` ${ms(trace.total_ms)} `,
      trace.error !== "NONE" ? h("span", { class: "badge bad" }, trace.error) : null,
      trace.outcome !== "answered" ? h("span", { class: "badge bad" }, trace.outcome) : null,
      ` ${trace.partitions.slice(0, 3).map(place).join(", ")}${trace.partition_count > 3 ? ` and ${trace.partition_count - 3} more` : ""} `,
      h("small", {}, `client ${trace.client_id ?? "–"}, broker ${trace.broker_id}, ${new Date(trace.at_ms).toLocaleTimeString([], { hour12: false })}`)),
    h("p", { class: "hint" }, `${trace.connection_id}, ${trace.listener}, ${trace.plane} plane, processor ${trace.processor}, principal ${trace.principal}, `
      + `correlation id ${trace.correlation_id}; ${trace.queue_size} in the queue and ${trace.control_queue_size} in the control queue before it`),
    waterfall(trace));
  details.addEventListener("toggle", () => {
    if (details.open === opened.has(key)) return; // shown again as it was
    if (details.open) opened.add(key);
    else opened.delete(key);
    traces.onState();
  });
  return details;
}

function waterfall(trace) {
  const rows = [];
  let start = 0;
  for (const [field, phase, title] of PHASES) {
    const took = trace[field];
    if (took >= 0.0005) rows.push(row(title, phase, start, took, trace.total_ms, ""));
    if (field === "remote_ms") for (const wait of trace.waits) rows.push(row(`– ${wait.purgatory} purgatory`, phase, wait.start_ms, wait.duration_ms, trace.total_ms, ended(wait)));
    start += took;
  }
  return h("div", { class: "waterfall" }, rows);
}

function ended(wait) {
  if (wait.outcome !== "completed") return wait.outcome;
  const who = wait.by === null ? "the broker itself" : `${wait.by.api} of ${wait.by.broker_id === null ? `client ${wait.by.client_id}` : `broker ${wait.by.broker_id}`} (correlation id ${wait.by.correlation_id})`;
  return `${wait.key ? `${wait.key}, ` : ""}completed by ${who}`;
}

function row(title, phase, start, took, total, text) {
  const scale = total > 0 ? 100 / total : 0;
  return h("div", { style: { display: "flex", gap: "8px", "align-items": "center" } },
    h("span", { style: { width: "150px" } }, title),
    h("span", { style: { width: "90px", "text-align": "right" } }, ms(took)),
    h("span", { class: "phases", style: { flex: "1", "min-width": "120px" } },
      h("i", { class: `phase ${phase}`, title: text, style: { "margin-left": `${Math.min(99.5, start * scale)}%`, width: `${Math.min(100, took * scale)}%` } })),
    h("small", { style: { width: "340px" } }, text));
}
