// Export as Chrome trace events, which Perfetto and chrome://tracing open.

import { CONTROLLER, ZOOKEEPER } from "./model.js";

export function chromeTrace(run) {
  const out = [];
  const lanes = [ZOOKEEPER, CONTROLLER, ...run.sortedBrokers()];
  const thread = (lane) => lanes.indexOf(lane) + 1;
  const zero = Math.min(run.start, run.messages[0]?.start ?? Infinity); // a write begins before its record
  const micros = (ms) => Math.round((ms - zero) * 1000);
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
    const args = { error: message.error, controller_epoch: message.epoch ?? null, broker_epoch: message.brokerEpoch ?? null };
    const ends = [["s", "departure", message.from, message.start], ["f", "arrival", message.to, message.end]];
    for (const [ph, cat, lane, at] of ends) {
      // Perfetto draws an arrow between slices only, and looks for them among the events before the arrow's end.
      const end = { pid: 1, tid: thread(lane), ts: micros(at), name: message.type, args };
      out.push({ ...end, ph: "X", dur: 1, cat }, { ...end, ph, id, cat: "message", ...(ph === "f" ? { bp: "e" } : {}) });
    }
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
