// The chain behind a change of a leader or an ISR: cause, event, decision, znode, requests, last broker that applied it.

import { name } from "./model.js";

const MAX_BACK_MS = 60_000;

export function why(run, change) {
  const tp = name(change.topic, change.partition);
  const steps = [];
  const event = run.eventOf(change.broker_id, change.number, change.at_ms);
  if (event) causes(run, event, steps);
  for (const write of run.writesOf(change.broker_id, change.number)) {
    // Times of records are whole milliseconds and durations are not, so a write may seem to begin before its event.
    if (write.answered <= change.at_ms + 1 && write.start >= (event?.started ?? change.at_ms - MAX_BACK_MS) - 2) {
      const checked = write.record.operations.find((operation) => operation.operation === "check");
      steps.push({ kind: "znode", at: write.start, end: write.answered, error: write.error,
        title: write.error === "NONE" ? `written to ZooKeeper: ${write.record.operation_count} operations` : `ZooKeeper refused: ${write.error}`,
        note: checked ? `fenced by ${checked.path} version ${checked.version}` : write.record.operations.map((it) => it.path).slice(0, 2).join(" ") });
    }
  }
  steps.push({ kind: "decision", at: change.at_ms, end: change.at_ms, record: change, title: describe(change),
    note: `controller epoch ${change.controller_epoch} on broker ${change.broker_id}` });
  requests(run, change, tp, steps);
  const begin = Math.min(...steps.map((step) => step.at));
  const end = Math.max(...steps.map((step) => step.end ?? step.at));
  return { tp, change, steps, begin, end };
}

export function describe(change) {
  const tp = name(change.topic, change.partition);
  const isr = `ISR ${change.isr.join(",")}`;
  if (change.kind === "isr_change") return `${tp}: ${isr} (was ${change.previous_isr.join(",") || "empty"})`;
  if (change.leader < 0) return `${tp} has no leader, ${isr}`;
  const how = change.strategy ? ` (${change.strategy})` : "";
  return `${tp}: broker ${change.leader} leads in epoch ${change.leader_epoch}${how}, ${isr}`;
}

function causes(run, event, steps) {
  const chain = [];
  let current = event;
  for (let depth = 0; current && depth < 5; depth += 1) {
    chain.unshift(current);
    const parent = /event (\d+)$/.exec(current.cause);
    current = parent ? run.eventOf(current.broker, Number(parent[1]), current.queued) : null;
  }
  origin(run, chain[0], steps);
  for (const item of chain) {
    const started = item.started ?? item.queued;
    if (started > item.queued) {
      steps.push({ kind: "queue", at: item.queued, end: started, title: `${item.name} waits in the queue`, note: `cause: ${item.cause}` });
    }
    steps.push({ kind: "event", at: started, end: item.done ?? run.end, title: `${item.name} is processed`,
      note: `event ${item.number}, cause: ${item.cause}${item.outcome && item.outcome !== "done" ? `, ${item.outcome}` : ""}` });
  }
}

function origin(run, event, steps) {
  if (event.cause !== "watch") return;
  const isAboutBrokers = ["BrokerChange", "Reelect", "ControllerChange"].includes(event.name);
  if (!isAboutBrokers) return;
  const fits = (record) => record.at_ms <= event.queued && record.at_ms >= event.queued - 2_000;
  const ended = run.records.findLast((record) => record.kind === "session" && fits(record));
  if (!ended) {
    goneBrokers(run, event, steps);
    return;
  }
  const fault = run.faults.findLast((it) => it.broker_id === ended.broker_id && it.at_ms <= ended.at_ms && it.at_ms >= ended.at_ms - 1_000);
  if (fault) steps.push({ kind: "fault", at: fault.at_ms, end: ended.at_ms, title: `broker ${fault.broker_id}: ${fault.text}`, note: "until its session ends" });
  steps.push({ kind: "session", at: ended.at_ms, end: event.queued, title: `session of broker ${ended.broker_id} ${ended.state}`, note: "until the watch reaches the controller" });
}

function goneBrokers(run, event, steps) {
  // A live cluster's log has no sessions; the next list of live brokers shows who was missing.
  for (const broker of run.sortedBrokers()) {
    const changed = run.up.get(broker)?.items.find((item) => item.at >= event.queued && item.at <= (event.done ?? event.queued) + 5_000);
    if (changed) steps.push({ kind: "session", at: event.queued, end: event.queued, title: `ZooKeeper reports that broker ${broker} is ${changed.state === "up" ? "back" : "gone"}`, note: "its registration has changed" });
  }
}

function requests(run, change, tp, steps) {
  const carries = (message) =>
    message.partitions.some((state) => name(state.topic, state.partition) === tp && state.leader_epoch === change.leader_epoch);
  const seen = new Set();
  for (const message of run.messages) {
    if (message.start < change.at_ms - 0.5 || message.from !== "controller" || message.epoch !== change.controller_epoch) continue;
    const key = `${message.type}:${message.to}`;
    if (seen.has(key) || !["LeaderAndIsr", "UpdateMetadata", "StopReplica"].includes(message.type) || !carries(message)) continue;
    if (message.end === null) continue;
    seen.add(key);
    const wait = message.queueMs > 0.5 ? `, ${Math.round(message.queueMs)} ms in the queue` : "";
    steps.push({ kind: message.type, at: message.start, end: message.end, error: message.error,
      title: `${message.type} to broker ${message.to}`, note: message.error === "NONE" ? `applied${wait}` : `refused: ${message.error}` });
  }
}
