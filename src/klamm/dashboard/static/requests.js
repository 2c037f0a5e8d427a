// The Requests tab: each API with its rate, its errors and the phases of its slowest requests; and traced requests.

import { fill, h } from "./dom.js";
import { hint, numbers, percent, refill, table } from "./parts.js";
import { slowRequests } from "./slow_requests.js";

// In the order in which a request passes them. A quota mutes the connection after the response: that is not part of the total.
const PHASES = {
  request_queue: "request queue",
  local: "handler",
  remote: "waits for replicas or data",
  response_order: "waits for earlier responses",
  response_queue: "response queue",
  response_send: "send",
  throttle: "throttled after the response",
};
const BUSY = 0.2;
const rate = (value) => (value === null || value === undefined ? "–" : value >= 10 ? Math.round(value) : value.toFixed(1));
const time = (value) => (value >= 10 ? `${Math.round(value)} ms` : `${value.toFixed(2)} ms`);

const figures = h("div");

export function showRequests(element, status) {
  // The figures are built again; the traces stay, so that a reader can type into their filter meanwhile.
  const section = slowRequests();
  if (figures.parentElement !== element) fill(element, figures, section);
  section.hidden = Boolean(status.problem);
  if (status.problem) {
    refill(figures, h("p", { class: "bad" }, status.problem));
    return;
  }
  const most = Math.max(1, ...status.requests.map((it) => sum(it.phases_ms)));
  const brokers = Object.values(status.activity);
  refill(figures,
    table(["broker", "#requests/s", "#queue", "#longest queue", "#control queue", "#connections", "handlers idle", "network idle", "broker loop idle", "#its lag", "control loop idle", "#its lag"],
      brokers.map(brokerRow)),
    hint("The longest queue, idle shares and lags are those of the last minute. The lag is the largest delay of a timer: a request could have waited for the loop as long."),
    h("h2", {}, "Phases of the slowest requests of each API (99th percentile)"),
    h("p", { class: "legend" }, Object.entries(PHASES).map(([phase, title]) => h("span", {}, h("i", { class: `phase ${phase}` }), title))),
    status.requests.length ? table(["API", "#per second", "#errors/s", "#total", "phases"], status.requests.map((it) => row(it, most))) : h("p", { class: "hint" }, "No metrics: start brokers with klamm.metrics.port; 0 picks a free port."));
}

const sum = (values) => Object.values(values).reduce((total, value) => total + value, 0);

function brokerRow(it) {
  const own = it.resources || {};
  const lag = (loop) => (own.loop_lag_max_ms?.[loop] === undefined ? null : time(own.loop_lag_max_ms[loop]));
  return h("tr", {}, h("td", {}, h("b", {}, it.broker_id)),
    numbers([rate(it.requests), it.request_queue, own.queue_max, own.control_queue, it.connections]),
    [own.handler_idle, own.network_idle].map((share) => h("td", {}, idle(share))),
    ["broker", "control"].map((loop) => [h("td", {}, idle(own.loop_idle?.[loop])), numbers([lag(loop)])]));
}

function idle(share) {
  if (share === null || share === undefined) return "–";
  return h("span", { class: "disk" }, h("i", {}, h("i", { class: share < BUSY ? "bad" : "good", style: { width: `${Math.round(share * 100)}%` } })), percent(share));
}

function row(it, most) {
  return h("tr", {},
    h("td", {}, h("b", {}, it.api)),
    numbers([rate(it.rate), it.error_rate > 0 ? h("span", { class: "badge bad" }, rate(it.error_rate)) : rate(it.error_rate), time(it.total_ms)]),
    h("td", { class: "wide" }, h("div", { class: "phases" }, Object.keys(PHASES).map((phase) => {
      const share = ((it.phases_ms[phase] ?? 0) / most) * 100;
      return share > 0 ? h("i", { class: `phase ${phase}`, title: `${PHASES[phase]}: ${time(it.phases_ms[phase])}`, style: { width: `${share}%` } }) : null;
    }))));
}
