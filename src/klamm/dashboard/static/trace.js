// Export as Chrome trace events, which Perfetto and chrome://tracing open.

import { CONTROLLER, ZOOKEEPER } from "./model.js";

export function chromeTrace(run) {
  const out = [];
  const lanes = [ZOOKEEPER, CONTROLLER, ...run.sortedBrokers()];
  const thread = (lane) => lanes.indexOf(lane) + 1;
  const micros = (ms) => Math.round((ms - run.start) * 1000);
  out.push({ ph: "M", pid: 1, name: "process_name", args: { name: "klamm control plane" } });
  for (const lane of lanes) {
    const title = lane === ZOOKEEPER ? "ZooKeeper" : lane === CONTROLLER ? "Controller" : `Broker ${lane}`;
    out.push({ ph: "M", pid: 1, tid: thread(lane), name: "thread_name", args: { name: title } });
  }
  for (const event of run.events) {
    const begin = event.started ?? event.queued;
    const lane = event.epoch > 0 ? CONTROLLER : event.broker;
    out.push({ ph: "X", pid: 1, tid: thread(lane), ts: micros(begin), dur: Math.max(1, micros(event.done ?? run.end) - micros(begin)),
      name: event.name, cat: "event", args: { number: event.number, cause: event.cause, outcome: event.outcome, epoch: event.epoch,
        queue_ms: begin - event.queued } });
  }
  run.messages.forEach((message, id) => {
    if (message.end === null || message.type === "tool") return;
    const common = { pid: 1, cat: "message", name: message.type, id };
    const args = { error: message.error, controller_epoch: message.epoch ?? null, broker_epoch: message.brokerEpoch ?? null };
    out.push({ ...common, ph: "s", tid: thread(message.from), ts: micros(message.start), args });
    out.push({ ...common, ph: "f", bp: "e", tid: thread(message.to), ts: micros(message.end), args });
    out.push({ ph: "X", pid: 1, tid: thread(message.to), ts: micros(message.end), dur: 1, name: message.type, cat: "arrival", args });
  });
  for (const change of run.changes) {
    out.push({ ph: "i", s: "p", pid: 1, tid: thread(CONTROLLER), ts: micros(change.at_ms), name: change.kind, cat: "decision", args: change });
  }
  for (const item of run.eventQueue.items) {
    out.push({ ph: "C", pid: 1, tid: thread(CONTROLLER), ts: micros(item.at), name: "event queue", args: { size: item.size } });
  }
  for (const [target, series] of run.requestQueues) {
    for (const item of series.items) out.push({ ph: "C", pid: 1, ts: micros(item.at), name: `queue of broker ${target}`, args: { size: item.size } });
  }
  return JSON.stringify({ traceEvents: out, displayTimeUnit: "ms" });
}
