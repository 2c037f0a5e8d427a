// The chain behind a change of a leader or an ISR: cause, event, decision, znode, requests, last broker that applied it.

import { name } from "./model.js";
import { lowerBound } from "./series.js";

const MAX_BACK_MS = 60_000;
const ENDS = new Set(["start", "restart", "resume", "heal", "fast"]); // of faults

export function why(run, change) {
  const tp = name(change.topic, change.partition);
  const steps = [];
  const event = run.eventOf(change.broker_id, change.number, change.at_ms);
  if (event) causes(run, event, steps);
  for (const write of run.writesOf(change.broker_id, change.number)) {
    // Times of records are whole milliseconds and durations are not, so a write may seem to begin before its event. One that
    // begins after the decision belongs to the next decision of the event.
    if (write.answered <= change.at_ms + 1 && write.start <= change.at_ms && write.start >= (event?.started ?? change.at_ms - MAX_BACK_MS) - 2) {
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
    if (!changedSessions(run, event, steps)) goneBrokers(run, event, steps);
    return;
  }
  const fault = run.faults.findLast((it) => it.broker_id === ended.broker_id && it.at_ms <= ended.at_ms && it.at_ms >= ended.at_ms - 1_000);
  if (fault) steps.push({ kind: "fault", at: fault.at_ms, end: ended.at_ms, title: `broker ${fault.broker_id}: ${fault.text}`, note: "until its session ends" });
  steps.push({ kind: "session", at: ended.at_ms, end: event.queued, title: `session of broker ${ended.broker_id} ${ended.state}`, note: "until the watch reaches the controller" });
}

function changedSessions(run, event, steps) {
  // The registrations that the event has found changed. A registration is gone when the session of its broker has ended.
  const found = run.registrations.filter((it) => it.broker_id === event.broker && it.number === event.number
    && it.at_ms >= event.queued && it.at_ms <= (event.done ?? Infinity));
  for (const { about_broker: broker, registration } of found) {
    if (registration !== "gone") {
      steps.push({ kind: "session", at: event.queued, end: event.queued, title: `session of broker ${broker} established`, note: `ZooKeeper reports that broker ${broker} is back` });
      continue;
    }
    endedSession(run, event, broker, steps);
  }
  return found.length > 0;
}

function endedSession(run, event, broker, steps) {
  // At the time that the broker itself has recorded, or at that of ZooKeeper's report.
  const own = run.sessions.get(broker)?.at(event.queued);
  const at = own && !own.isOpen && own.at >= event.queued - MAX_BACK_MS ? own.at : event.queued;
  const fault = run.faults.findLast((it) => it.broker_id === broker && it.at_ms <= at && it.at_ms >= at - MAX_BACK_MS);
  if (fault && !ENDS.has(fault.name)) steps.push({ kind: "fault", at: fault.at_ms, end: at, title: `broker ${broker}: ${fault.text}`, note: "until its session ends" });
  steps.push({ kind: "session", at, end: event.queued, title: `session of broker ${broker} ended`, note: `ZooKeeper reports that broker ${broker} is gone` });
}

function goneBrokers(run, event, steps) {
  // A new controller does not know which brokers its predecessor had; the next list of live brokers shows who was missing.
  for (const broker of run.sortedBrokers()) {
    const changed = run.up.get(broker)?.items.find((item) => item.at >= event.queued && item.at <= (event.done ?? event.queued) + 5_000);
    if (changed?.state === "up") steps.push({ kind: "session", at: event.queued, end: event.queued, title: `ZooKeeper reports that broker ${broker} is back`, note: "its registration has changed" });
    else if (changed) endedSession(run, event, broker, steps);
  }
}

function requests(run, change, tp, steps) {
  const seen = new Set();
  const carrying = carriers(run, change, tp);
  const own = carrying.filter((message) => message.record.event_numbers?.includes(change.number));
  for (const message of own.length ? own : carrying) {
    const key = `${message.type}:${message.to}`;
    if (seen.has(key)) continue;
    seen.add(key);
    const wait = message.queueMs > 0.5 ? `, ${Math.round(message.queueMs)} ms in the queue` : "";
    steps.push({ kind: message.type, at: message.start, end: message.end, error: message.error,
      title: `${message.type} to broker ${message.to}`, note: message.error === "NONE" ? `applied${wait}` : `refused: ${message.error}` });
  }
}

function carriers(run, change, tp) {
  // The requests that have the new state, or may have it beyond the end of their list. A broker records each of its roles.
  const isState = (it) => name(it.topic, it.partition) === tp && it.leader_epoch === change.leader_epoch;
  const found = [];
  for (let index = lowerBound(run.messages, change.at_ms - 0.5, (it) => it.start); index < run.messages.length; index += 1) {
    const message = run.messages[index];
    if (message.from !== "controller" || message.epoch !== change.controller_epoch || message.end === null) continue;
    if (!["LeaderAndIsr", "UpdateMetadata", "StopReplica"].includes(message.type)) continue;
    const isCut = message.count > message.partitions.length;
    const isHidden = isCut && (message.type === "LeaderAndIsr" ? message.roles?.some(isState) : true);
    if (message.partitions.some(isState) || isHidden) found.push(message);
  }
  return found;
}
