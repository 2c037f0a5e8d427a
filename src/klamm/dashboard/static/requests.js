// The Requests tab: each API with its rate, its errors and the phases of its slowest requests; and traced requests.

import { fill, h } from "./dom.js";
import { slowRequests } from "./slow_requests.js";

const PHASES = {
  request_queue: "request queue",
  local: "handler",
  remote: "waits for replicas or data",
  throttle: "throttled",
  response_queue: "response queue",
  response_order: "waits for earlier responses",
  response_send: "send",
};
const rate = (value) => (value === null ? "–" : value >= 10 ? Math.round(value) : value.toFixed(1));
const time = (value) => (value >= 10 ? `${Math.round(value)} ms` : `${value.toFixed(2)} ms`);

export function showRequests(element, status) {
  if (status.problem) {
    fill(element, h("p", { class: "bad" }, status.problem));
    return;
  }
  const most = Math.max(1, ...status.requests.map((it) => sum(it.phases_ms)));
  const brokers = Object.values(status.activity);
  fill(element,
    h("div", { class: "tiles" }, brokers.map((it) => h("div", { class: "tile" },
      h("small", {}, `broker ${it.broker_id}`), h("b", {}, `${rate(it.requests)}/s`), h("span", {}, `${it.request_queue ?? "–"} in the queue, ${it.connections ?? "–"} connections`)))),
    h("h2", {}, "Phases of the slowest requests of each API (99th percentile)"),
    h("p", { class: "legend" }, Object.entries(PHASES).map(([phase, title]) => h("span", {}, h("i", { class: `phase ${phase}` }), title))),
    status.requests.length ? h("table", {},
      h("thead", {}, h("tr", {}, ["API", "per second", "errors/s", "total", "phases"].map((title) => h("th", {}, title)))),
      h("tbody", {}, status.requests.map((it) => row(it, most)))) : h("p", { class: "hint" }, "No metrics: start brokers with klamm.metrics.port; 0 picks a free port."),
    slowRequests());
}

const sum = (values) => Object.values(values).reduce((total, value) => total + value, 0);

function row(it, most) {
  return h("tr", {},
    h("td", {}, h("b", {}, it.api)), h("td", {}, rate(it.rate)),
    h("td", {}, it.error_rate > 0 ? h("span", { class: "badge bad" }, rate(it.error_rate)) : rate(it.error_rate)),
    h("td", {}, time(it.total_ms)),
    h("td", { class: "wide" }, h("div", { class: "phases" }, Object.keys(PHASES).map((phase) => {
      const share = ((it.phases_ms[phase] ?? 0) / most) * 100;
      return share > 0 ? h("i", { class: `phase ${phase}`, title: `${PHASES[phase]}: ${time(it.phases_ms[phase])}`, style: { width: `${share}%` } }) : null;
    }))));
}
