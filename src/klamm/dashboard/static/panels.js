// The panels beside the chart: the state at the current time, the details of a selection, the chain behind a change.

import { fill, h, list, milliseconds } from "./dom.js";
import { label } from "./chart.js";
import { DELETED } from "./model.js";
import { why, describe } from "./why.js";

export function showState(element, run, time, partition) {
  const controller = run.controllerAt(time);
  const truth = run.truth.get(partition)?.at(time);
  const rows = run.sortedBrokers().map((broker) => stateRow(run, broker, time, partition, controller));
  fill(element,
    h("p", { class: "facts" },
      controller ? ["controller ", h("b", {}, `broker ${controller.broker}`), `, epoch ${controller.epoch}`] : h("b", { class: "bad" }, "no controller"),
      partition && truth ? [" · ", h("b", {}, partition), truth.leader === DELETED ? " is deleted" : truth.leader < 0 ? " has no leader" : ` led by ${truth.leader}`, `, epoch ${truth.epoch}, ISR ${list(truth.isr)}, version ${truth.version}`] : null),
    h("table", {},
      h("thead", {}, h("tr", {}, ["broker", "role", "log end", "HW", "its cache"].map((title) => h("th", {}, title)))),
      h("tbody", {}, rows)));
}

function stateRow(run, broker, time, partition, controller) {
  const up = run.up.get(broker)?.at(time)?.state ?? "up";
  const session = run.sessions.get(broker)?.at(time);
  const replica = run.replicas.get(`${broker}/${partition}`)?.at(time);
  const known = run.knownOf(broker, partition)?.at(time);
  const isStale = run.isStale(broker, partition, time);
  const update = run.updateAt(broker, time, isStale);
  const state = up !== "up" ? up : session && !session.isOpen ? "no session" : "";
  const isMissing = (!known || known.epoch === null) && up === "up" && run.truth.get(partition)?.at(time)?.leader >= 0;
  const cache = isMissing ? "unknown" : !known || known.epoch === null ? "" : known.leader === DELETED ? "forgotten" : `leader ${known.leader} e${known.epoch}`;
  return h("tr", { class: up === "down" ? "down" : "" },
    h("td", {}, h("b", {}, broker), controller?.broker === broker ? h("span", { class: "badge term" }, "C") : null, state ? h("span", { class: "badge bad" }, state) : null),
    h("td", {}, replica?.role && replica.role !== "none" ? h("span", { class: `role ${replica.role}` }, `${replica.role} e${replica.epoch}`) : "–"),
    h("td", {}, replica?.logEnd ?? "–"),
    h("td", {}, replica?.highWatermark ?? "–"),
    h("td", {}, cache || "–", isStale || isMissing ? h("span", { class: "badge bad" }, "stale") : null,
      update && up === "up" ? h("small", { class: update.behind ? "bad" : "muted", title: `controller epoch ${update.epoch}` }, update.text) : null));
}

const SHOWN = { message: messageFacts, event: eventFacts, change: changeFacts, fault: recordFacts, replica: recordFacts, queue: recordFacts, coalesced: recordFacts, session: sessionFacts };

export function titleOf(hit) {
  const { type, item } = hit;
  if (type === "message") return hit.more ? `${label(item)}, and ${hit.more} more like it` : label(item);
  if (type === "event") return `${item.name} (event ${item.number})`;
  if (type === "change") return describe(item);
  if (type === "session") return item.isOpen ? `broker ${item.broker} has a session with ZooKeeper` : `broker ${item.broker} has no session with ZooKeeper`;
  if (type === "fault") return item.link ? item.text : `${item.place === "zk" ? "ZooKeeper" : `broker ${item.place}`}: ${item.text}`;
  if (type === "queue") return `${item.title}: ${item.size} waiting`;
  if (type === "coalesced") return `${item.api} for broker ${item.target} was merged into a waiting request${hit.more ? `, and ${hit.more} more` : ""}`;
  return `log end ${item.logEnd}, high watermark ${item.highWatermark ?? "known to the leader"}`;
}

export function showSelection(element, run, hit, actions) {
  if (!hit) {
    fill(element, h("p", { class: "hint" }, "Select an arrow, a bar or a diamond in the chart. Diamonds are decisions: they explain themselves."));
    return;
  }
  const facts = SHOWN[hit.type](hit.item, run);
  fill(element,
    h("h3", {}, titleOf(hit)),
    hit.type === "change" ? waterfall(run, hit.item, actions) : null,
    h("dl", {}, facts.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([key, value]) => [h("dt", {}, key), h("dd", {}, value)])));
}

function place(id) {
  return id === "zk" ? "ZooKeeper" : id === "controller" ? "the controller" : id === "outside" ? "a tool" : `broker ${id}`;
}

function messageFacts(message, run) {
  const { record } = message;
  return [
    ["from", message.owner >= 0 && message.from === "controller" ? `controller on broker ${message.owner}` : place(message.from)],
    ["to", place(message.to)],
    ["outcome", message.error === "NONE" ? (message.end === null ? "no answer" : "accepted") : h("b", { class: "bad" }, reason(message))],
    ["sent", milliseconds(message.start - run.zero)],
    ["on the way", message.end !== null && message.end > message.start ? milliseconds(message.end - message.start) : ""],
    ["in the queue", message.queueMs ? milliseconds(message.queueMs) : ""],
    ["controller epoch", message.epoch],
    ["broker epoch", message.brokerEpoch],
    ["attempt", message.attempt > 1 ? message.attempt : ""],
    ["correlation id", record.correlation_id],
    ["change", record.change ? `${record.path} ${record.change.replace("_", " ")}` : ""],
    ["operations", record.operations ? operations(record) : ""],
    ["partitions", message.partitions.length ? partitions(message) : ""],
    ["proposed", message.proposals?.length ? proposals(message) : ""],
  ];
}

function sessionFacts(session, run) {
  return [["session", session.id], [session.isOpen ? "since" : "ended", milliseconds(session.at - run.zero)]];
}

function reason(message) {
  const { delivery, record, error } = message;
  if (delivery && error === "STALE_CONTROLLER_EPOCH" && delivery.own_controller_epoch > delivery.controller_epoch) {
    return `${error}: the broker knows controller epoch ${delivery.own_controller_epoch}, the request is of ${delivery.controller_epoch}`;
  }
  if (delivery && error === "STALE_BROKER_EPOCH") {
    return `${error}: the broker has epoch ${delivery.own_broker_epoch}, the request is for ${delivery.broker_epoch}`;
  }
  if (record.refused_path) return `${error} at ${record.refused_path}`;
  return error;
}

const operations = (record) =>
  h("ul", {}, record.operations.map((it) => h("li", {}, h("i", {}, it.operation), ` ${it.path}`, it.version >= 0 ? ` (version ${it.version})` : "")),
    record.operation_count > record.operations.length ? h("li", {}, `and ${record.operation_count - record.operations.length} more`) : null);

const proposals = (message) =>
  h("ul", {}, message.proposals.map((it) => h("li", {}, `${it.topic}-${it.partition}: ISR ${list(it.isr)}, leader epoch ${it.leader_epoch}, partition epoch ${it.partition_epoch}`,
    it.error === "NONE" ? null : h("b", { class: "bad" }, ` ${it.error}`))),
  message.count > message.proposals.length ? h("li", {}, `and ${message.count - message.proposals.length} more`) : null);

const partitions = (message) =>
  h("ul", {}, message.partitions.map((it) => h("li", {}, `${it.topic}-${it.partition}`, it.leader === -2 ? " is deleted" : `: leader ${it.leader}, epoch ${it.leader_epoch}`)),
    message.count > message.partitions.length ? h("li", {}, `and ${message.count - message.partitions.length} more`) : null);

function eventFacts(event, run) {
  return [
    ["on", `broker ${event.broker}${event.epoch ? `, controller epoch ${event.epoch}` : ""}`],
    ["cause", event.cause],
    ["about", event.about !== null ? `broker ${event.about}` : ""],
    ["topics", event.topics.length ? event.topics.join(", ") : ""],
    ["waited", event.started !== null ? milliseconds(event.started - event.queued) : ""],
    ["took", event.done !== null && event.started !== null ? milliseconds(event.done - event.started) : ""],
    ["state", event.state],
    ["outcome", event.outcome],
    ["queued", milliseconds(event.queued - run.zero)],
  ];
}

function changeFacts(change) {
  return [
    ["kind", change.kind.replace("_", " ")],
    ["strategy", change.strategy],
    ["leader", `${change.previous_leader} → ${change.leader}`],
    ["ISR", `${list(change.previous_isr)} → ${list(change.isr)}`],
    ["leader epoch", change.leader_epoch],
    ["partition epoch", change.partition_epoch],
    ["unclean", change.unclean ? "yes: records may be lost" : ""],
  ];
}

function recordFacts(record) {
  return Object.entries(record)
    .filter(([key]) => !["kind", "sequence", "loop", "monotonic_ms", "at", "item"].includes(key))
    .map(([key, value]) => [key.replaceAll("_", " "), Array.isArray(value) ? list(value.map((it) => (typeof it === "object" ? `${it.topic}-${it.partition}` : it))) : value === null ? "" : String(value)]);
}

function waterfall(run, change, actions) {
  const chain = why(run, change);
  const span = Math.max(1, chain.end - chain.begin);
  const last = chain.steps.filter((step) => step.kind === "UpdateMetadata").at(-1);
  return h("section", { class: "why", "aria-label": "why" },
    h("p", {}, h("b", {}, milliseconds(chain.end - chain.begin)), " from the first cause", last ? " to the last broker that knows it." : "."),
    h("ol", {}, chain.steps.map((step) => {
      const left = ((step.at - chain.begin) / span) * 100;
      const width = Math.max(0.8, (((step.end ?? step.at) - step.at) / span) * 100);
      const isRefused = step.error && step.error !== "NONE";
      return h("li", { tabindex: "0", on: { click: () => actions.seek(step.end ?? step.at), keydown: (event) => event.key === "Enter" && actions.seek(step.end ?? step.at) } },
        h("span", { class: "when" }, `+${milliseconds(step.at - chain.begin)}`),
        h("span", { class: isRefused ? "bad" : "" }, step.title),
        h("small", {}, step.note),
        h("i", { class: `bar ${isRefused ? "refused" : step.kind}`, style: { "margin-left": `${Math.min(99, left)}%`, width: `${Math.min(100 - left, width)}%` } }));
    })));
}
