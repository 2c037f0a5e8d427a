// A run as the charts show it: events, messages, roles and queues, joined from records of the control log.
// The same code reads a live cluster's log and a simulated run; a simulated run has a few kinds more.

import { Levels } from "./levels.js";
import { lowerBound, Series, seriesIn, settle } from "./series.js";

export const ZOOKEEPER = "zk";
export const CONTROLLER = "controller";
export const SLOW_MS = 5_000;
const CHANGES = new Set(["election", "leader_change", "isr_change"]);
const DELETIONS = new Set(["DeleteTopics", "TopicDeletion"]);
export const DELETED = -2; // as a leader
export const name = (topic, partition) => `${topic}-${partition}`;

const at = (record) => record.at_ms;
const ORDERED = [["messages", (it) => it.start], ["events", (it) => it.queued], ["changes", at], ["records", at], ["coalesced", at]];
const SERIES = ["up", "sessions", "truth", "replicas", "metadata", "known", "updates", "requestQueues", "metadataLag"];
export const lastOf = (message) => Math.max(message.end ?? message.start, message.answered ?? message.start);
const lengthOf = (message) => lastOf(message) - message.start;

// Whether an entry of a cache differs from the one before. Epochs of a topic that was deleted begin again.
function isNews(before, { leader, epoch }) {
  if (!before || before.epoch === null) return true;
  if (before.leader === DELETED || leader === DELETED) return before.leader !== leader;
  return epoch > before.epoch;
}

export class Run {
  constructor() {
    this.records = [];
    this.brokers = new Set();
    this.start = Infinity;
    this.end = 0;
    this.events = [];
    this.messages = [];
    this.changes = [];
    this.faults = [];
    this.terms = [];
    this.brokerEpochs = new Map();
    this.partitions = new Set();
    this.up = new Map();
    this.sessions = new Map();
    this.registrations = [];
    this.truth = new Map();
    this.replicas = new Map();
    this.metadata = new Map();
    this.known = new Map();
    this.updates = new Map(); // broker -> applied updates with more partitions than their records list
    this._earlyRoles = new Map(); // roles whose request is not known yet
    this._unjoined = new Map(); // those whose request is not known yet
    this._merged = new Map(); // what `knownOf` has found
    this.eventQueue = new Series();
    this.requestQueues = new Map();
    this.metadataLag = new Map();
    this._unapplied = new Map();
    this._liveAt = 0;
    this.coalesced = [];
    this.slow = new Set(); // messages and events of more than SLOW_MS, which begin long before a window that shows them
    this.hasLogs = false;
    this.messageLevels = new Levels({ at: (it) => it.start, way: (it) => it.way, length: lengthOf, isRefused: (it) => it.error !== "NONE" });
    this.eventLevels = new Levels({ at: (it) => it.started, way: (it) => it.way, length: (it) => (it.done ?? it.started) - it.started });
    this.coalescedLevels = new Levels({ at: (it) => it.at_ms, way: (it) => it.target });
    this._events = new Map();
    this._sent = new Map();
    this._lastSent = new Map();
    this._early = new Map();
    this._writes = new Map();
    this._proposals = new Map();
    this._waiting = 0;
    this._terms = new Map();
    this._live = new Map();
    this._open = new Map();
    this._isSimulated = false;
    this._hasSessions = false; // those of a simulated ZooKeeper, which are exact
    this.forgotten = 0;
  }

  add(records) {
    const sorted = ORDERED.map(([list]) => this[list].length);
    for (const record of records) this._add(record);
    ORDERED.forEach(([list, key], index) => settle(this[list], sorted[index], key));
    return this;
  }

  // Forget the oldest records, and what ended before the first that is kept. Series keep the value that holds then.
  forget(most) {
    const excess = this.records.length - most;
    if (excess <= 0) return;
    const before = this.records[excess].at_ms;
    for (const [list, key] of ORDERED) this[list].splice(0, list === "records" ? excess : lowerBound(this[list], before, key));
    this.forgotten += excess;
    this.start = before;
    this.registrations = this.registrations.filter((it) => it.at_ms >= before);
    this.faults = this.faults.filter((it) => it.at_ms >= before);
    this.terms = this.terms.filter((it) => it.end === null || it.end >= before);
    for (const item of this.slow) if ((item.done ?? lastOf(item)) < before) this.slow.delete(item);
    for (const series of [this.eventQueue, ...SERIES.flatMap((map) => [...this[map].values()])]) series.forget(before);
    for (const levels of [this.messageLevels, this.eventLevels, this.coalescedLevels]) levels.clear();
    this._forgetJoined(before);
  }

  _forgetJoined(before) {
    const drop = (map, isOld) => map.forEach((value, key) => isOld(value) && map.delete(key));
    drop(this._events, (event) => event.queued < before && event.done !== null);
    drop(this._sent, (message) => message.start < before);
    drop(this._lastSent, (message) => message.start < before);
    drop(this._early, (at) => at < before);
    drop(this._unjoined, (update) => update.at < before);
    drop(this._earlyRoles, (roles) => roles[0].at_ms < before);
    this._merged.clear();
    drop(this._writes, (writes) => writes.at(-1).start < before);
    drop(this._proposals, (sent) => !sent.length);
  }

  _add(record) {
    this.records.push(record);
    if (record.broker_id >= 0) this.brokers.add(record.broker_id);
    this.start = Math.min(this.start, record.at_ms);
    this.end = Math.max(this.end, record.at_ms);
    const handler = this[`_on_${record.kind}`];
    if (CHANGES.has(record.kind)) this._change(record);
    else if (handler) handler.call(this, record);
  }

  lane(broker, epoch) {
    return epoch > 0 ? CONTROLLER : broker;
  }

  _message(fields) {
    const message = { end: null, answered: null, error: "NONE", partitions: [], ...fields };
    for (const end of [message.from, message.to]) if (end >= 0) this.brokers.add(end); // a broker may have no record of its own
    message.way = `${message.type}:${message.from}:${message.to}${message.isAnswer ? ":answer" : ""}`;
    this.messages.push(message);
    this.messageLevels.add(message);
    this._longer(message);
    return message;
  }

  _longer(message) {
    if (lengthOf(message) > SLOW_MS) this.slow.add(message);
    this.messageLevels.lengthen(message);
  }

  _judge(message, error) {
    const isChanged = (message.error === "NONE") !== (error === "NONE");
    message.error = error;
    if (isChanged) this.messageLevels.judge(message);
  }

  // --- events of the controller

  _event(record) {
    const key = `${record.broker_id}:${record.number}`;
    let event = this._events.get(key);
    if (!event || record.kind === "event_queued" || event.done !== null) {
      event = { broker: record.broker_id, number: record.number, name: record.event, queued: record.at_ms, started: null,
        done: null, outcome: "", cause: record.cause || "", epoch: record.controller_epoch, topics: record.topics || [],
        about: record.about_broker ?? null, state: record.state_name || "", record };
      this._events.set(key, event);
      this.events.push(event);
    }
    return event;
  }

  _count(at, change, epoch) {
    if (epoch > 0) {
      this._waiting = Math.max(0, this._waiting + change);
      this.eventQueue.push({ at, size: this._waiting });
    }
  }

  _on_event_queued(record) {
    const event = this._event(record);
    this._count(record.at_ms, 1, record.controller_epoch);
    if (record.event === "AlterPartition" && record.about_broker !== null) {
      const sent = (this._proposals.get(record.about_broker) || []).shift();
      event.proposal = this._message({ type: "AlterPartition", from: record.about_broker, to: CONTROLLER, start: sent ? sent.at_ms : record.at_ms,
        end: record.at_ms, epoch: record.controller_epoch, event, proposal: sent || null, record, owner: record.broker_id });
    }
  }

  _on_event_started(record) {
    const event = this._event(record);
    const isNew = event.started === null;
    event.started = record.at_ms;
    event.queueMs = record.queue_ms;
    event.epoch = record.controller_epoch || event.epoch;
    event.way = event.epoch > 0 ? `${event.broker}:${event.epoch}` : event.broker;
    if (isNew) this.eventLevels.add(event);
    this._count(record.at_ms, -1, record.controller_epoch || event.record.controller_epoch);
  }

  _on_event_done(record) {
    const event = this._event(record);
    if (record.outcome === "refused") this._count(record.at_ms, -1, event.record.controller_epoch);
    event.done = record.at_ms;
    event.outcome = record.outcome;
    event.epoch = record.controller_epoch || event.epoch;
    if (event.started !== null) this._ended(event);
  }

  _ended(event) {
    if (event.done - event.started > SLOW_MS) this.slow.add(event);
    this.eventLevels.lengthen(event);
  }

  _on_controller_changed(record) {
    const broker = record.broker_id;
    const term = this._terms.get(broker);
    if (term) this._endTerm(broker, record.at_ms);
    if (record.controller_id === broker && record.controller_epoch > 0) {
      const started = { broker, epoch: record.controller_epoch, start: record.at_ms, end: null };
      this._terms.set(broker, started);
      this.terms.push(started);
    }
  }

  _endTerm(broker, at) {
    const term = this._terms.get(broker);
    if (term) term.end = at;
    this._terms.delete(broker);
    if (!this._terms.size) {
      this._waiting = 0;
      this.eventQueue.push({ at, size: 0 });
    }
  }

  _on_znodes_written(record) {
    const start = record.at_ms - record.duration_ms;
    const message = this._message({ type: "znodes", from: this.lane(record.broker_id, record.controller_epoch), to: ZOOKEEPER,
      start, end: start + record.duration_ms / 2, answered: record.at_ms, error: record.error, epoch: record.controller_epoch,
      owner: record.broker_id, number: record.number, record });
    const key = `${record.broker_id}:${record.number}`;
    if (!this._writes.has(key)) this._writes.set(key, []);
    this._writes.get(key).push(message);
  }

  writesOf(broker, number) {
    return this._writes.get(`${broker}:${number}`) || [];
  }

  eventOf(broker, number, at) {
    const found = this._events.get(`${broker}:${number}`);
    if (found && found.queued <= at) return found;
    return this.events.findLast((event) => event.broker === broker && event.number === number && event.queued <= at) || null;
  }

  // --- leaders and ISRs

  _change(record) {
    const tp = name(record.topic, record.partition);
    this.partitions.add(tp);
    this.changes.push(record);
    const series = seriesIn(this.truth, tp);
    const last = series.last;
    const isOther = record.strategy === "initial" && record.at_ms > last?.at; // a topic of the same name: its epochs begin again
    const isNewer = !last || isOther || record.leader_epoch > last.epoch || (record.leader_epoch === last.epoch && record.partition_epoch >= last.version);
    if (isNewer) {
      const leader = record.leader < 0 && DELETIONS.has(record.event) ? DELETED : record.leader;
      series.push({ at: record.at_ms, leader, epoch: record.leader_epoch, isr: record.isr, version: record.partition_epoch,
        controllerEpoch: record.controller_epoch, number: record.number, record });
    }
  }

  // An UpdateMetadata that removes a partition shows the decision to delete it, also if the partition had no leader.
  _deletions(record) {
    if (record.api !== "UpdateMetadata") return;
    for (const state of record.partitions) {
      const series = state.leader === DELETED ? this.truth.get(name(state.topic, state.partition)) : null;
      const last = series?.last;
      if (last && last.leader !== DELETED && last.at <= record.at_ms) {
        series.push({ ...last, at: record.at_ms, leader: DELETED, controllerEpoch: record.controller_epoch, number: record.event_number, record: null });
      }
    }
  }

  // --- control requests

  _channel(record, target) {
    return `${record.controller_epoch}:${target}`;
  }

  _on_request_queued(record) {
    this._deletions(record);
    seriesIn(this.requestQueues, record.target).push({ at: record.at_ms, size: record.queue_size });
  }

  _on_request_coalesced(record) {
    this.coalesced.push(record);
    this.coalescedLevels.add(record);
  }

  _on_request_sent(record) {
    const channel = this._channel(record, record.target);
    if (record.attempt === 1) {
      const queue = seriesIn(this.requestQueues, record.target);
      queue.push({ at: record.at_ms, size: Math.max(0, (queue.last?.size ?? 1) - 1) });
    }
    const message = this._message({ type: record.api, from: CONTROLLER, to: record.target, start: record.at_ms,
      epoch: record.controller_epoch, brokerEpoch: record.broker_epoch, attempt: record.attempt, partitions: record.partitions,
      count: record.partition_count, queueMs: record.queue_ms, owner: record.broker_id, record });
    if (record.broker_epoch >= 0) this.brokerEpochs.set(record.target, record.broker_epoch);
    this._sent.set(`${channel}:${record.correlation_id}`, message);
    this._lastSent.set(channel, message);
    if (record.api === "UpdateMetadata") this._sendUpdate(record);
    this._join(`${channel}:${record.correlation_id}`, record);
    message.roles = this._earlyRoles.get(`${channel}:${record.correlation_id}`);
    this._earlyRoles.delete(`${channel}:${record.correlation_id}`);
    const early = this._early.get(`${channel}:${record.correlation_id}`);
    if (early !== undefined && early >= record.at_ms) this._arrive(message, early);
  }

  // The lag of a broker: updates that were sent to it and that it has not applied.
  _updates(broker, epoch) {
    let open = this._unapplied.get(broker);
    if (!open || open.epoch !== epoch) this._unapplied.set(broker, (open = { epoch, ids: new Set(), early: new Set() }));
    return open;
  }

  _sendUpdate(record) {
    const open = this._updates(record.target, record.controller_epoch);
    if (record.attempt > 1) open.ids.clear(); // one request is in flight at a time: this one replaces it
    if (!open.early.delete(record.correlation_id)) open.ids.add(record.correlation_id);
    seriesIn(this.metadataLag, record.target).push({ at: record.at_ms, size: open.ids.size });
  }

  // Records of several brokers arrive in any order: an update may be applied before the record of its sending is read.
  _applyUpdate(broker, record) {
    const open = this._updates(broker, record.controller_epoch);
    if (!open.ids.has(record.correlation_id)) open.early.add(record.correlation_id);
    if (!open.ids.size) return;
    for (const id of open.ids) if (id <= record.correlation_id) open.ids.delete(id);
    seriesIn(this.metadataLag, broker).push({ at: record.at_ms, size: open.ids.size });
  }

  // An update with more partitions than its record lists gets the number of the event that its request has.
  _join(key, request) {
    const update = this._unjoined.get(key);
    if (!update) return;
    update.number = request.event_number;
    this._unjoined.delete(key);
    this._merged.clear();
  }

  _noteUpdate(record) {
    if (record.partition_count <= record.partitions.length) return;
    const update = { at: record.at_ms, controllerEpoch: record.controller_epoch, number: null };
    const key = `${this._channel(record, record.broker_id)}:${record.correlation_id}`;
    seriesIn(this.updates, record.broker_id).push(update);
    this._unjoined.set(key, update);
    const sent = this._sent.get(key);
    if (sent) this._join(key, sent.record);
  }

  _arrive(message, at) {
    if (message.end === null || message.end > at) {
      message.end = at;
      this._longer(message);
    }
  }

  _find(record, target) {
    const channel = this._channel(record, target);
    const exact = this._sent.get(`${channel}:${record.correlation_id}`);
    if (exact) return exact;
    const last = this._lastSent.get(channel);
    return last && last.end === null ? last : null;
  }

  _on_request_delivered(record) {
    const message = this._find(record, record.broker_id);
    if (!message) return;
    this._arrive(message, record.at_ms);
    message.delivery = record;
    this._judge(message, record.error !== "NONE" ? record.error : record.partition_errors.length ? record.partition_errors[0].error : "NONE");
  }

  _on_request_acknowledged(record) {
    const message = this._find(record, record.target);
    if (!message) return;
    message.answered = record.at_ms;
    if (record.error !== "NONE") this._judge(message, record.error);
    else if (record.failed_partition_count && message.error === "NONE") this._judge(message, `${record.failed_partition_count} failed`);
    if (message.end === null) this._arrive(message, (message.start + record.at_ms) / 2);
    else this._longer(message);
  }

  _on_proposal_sent(record) {
    if (!this._proposals.has(record.broker_id)) this._proposals.set(record.broker_id, []);
    this._proposals.get(record.broker_id).push(record);
  }

  // The answer also shows what became of the proposal: its arrow gets the error, the epochs and the partitions.
  _on_proposal_answered(record) {
    const error = record.error !== "NONE" ? record.error : record.partitions.find((it) => it.error !== "NONE")?.error ?? "NONE";
    const answer = { epoch: record.controller_epoch, brokerEpoch: record.broker_epoch, proposals: record.partitions, count: record.partition_count };
    this._message({ type: "AlterPartition", from: CONTROLLER, to: record.target, start: record.at_ms, end: record.at_ms, isAnswer: true,
      error, owner: record.broker_id, record, ...answer });
    const proposal = this.eventOf(record.broker_id, record.number, record.at_ms)?.proposal;
    if (!proposal) return;
    Object.assign(proposal, answer);
    this._judge(proposal, error);
  }

  // --- effects on brokers

  _applied(record) {
    const message = this._find(record, record.broker_id);
    if (message) this._arrive(message, record.at_ms);
    else this._early.set(`${this._channel(record, record.broker_id)}:${record.correlation_id}`, record.at_ms);
    return message;
  }

  _on_metadata_applied(record) {
    const message = this._applied(record);
    if (message) message.applied = record;
    this._applyUpdate(record.broker_id, record);
    seriesIn(this.metadata, record.broker_id).push({ at: record.at_ms, count: record.update_count, epoch: record.controller_epoch,
      controller: record.controller_id, live: record.live_brokers });
    for (const state of record.partitions) {
      const tp = name(state.topic, state.partition);
      seriesIn(this.known, `${record.broker_id}/${tp}`).push({ at: record.at_ms, leader: state.leader, epoch: state.leader_epoch });
    }
    this._noteUpdate(record);
    this._noteLive(record);
  }

  _noteLive(record) {
    // Without records of faults, the newest list of live brokers shows which are up. Records may arrive out of order.
    if (!this._isSimulated && record.at_ms < this._liveAt) return;
    this._liveAt = record.at_ms;
    const live = new Set(record.live_brokers);
    for (const broker of live) this.brokers.add(broker);
    for (const broker of this.brokers) {
      const isUp = live.has(broker);
      if (!this._isSimulated && this._live.get(broker) !== isUp) {
        this._live.set(broker, isUp);
        if (isUp) seriesIn(this.up, broker).push({ at: record.at_ms, state: "up" });
        else this._down(broker, record.at_ms);
        const session = this.sessions.get(broker)?.at(record.at_ms);
        if (session && session.isOpen !== isUp) this._session(broker, record.at_ms, isUp, session.id); // if no controller has seen it
      }
    }
  }

  _on_role_changed(record) {
    if (record.correlation_id !== null) {
      const message = this._applied(record);
      const key = `${this._channel(record, record.broker_id)}:${record.correlation_id}`;
      if (message) (message.roles ||= []).push(record);
      else if (this._earlyRoles.has(key)) this._earlyRoles.get(key).push(record);
      else this._earlyRoles.set(key, [record]);
    }
    const tp = name(record.topic, record.partition);
    this.partitions.add(tp);
    const series = seriesIn(this.replicas, `${record.broker_id}/${tp}`);
    const before = series.last || {};
    series.push({ ...before, isr: null, pending: null, at: record.at_ms, role: record.role, epoch: record.leader_epoch });
  }

  _on_replica(record) {
    const tp = name(record.topic, record.partition);
    const role = record.leader === record.broker_id ? "leader" : record.leader < 0 ? "offline" : "follower";
    seriesIn(this.replicas, `${record.broker_id}/${tp}`).push({ at: record.at_ms, role, leader: record.leader, epoch: record.leader_epoch,
      isr: record.isr, pending: record.pending_isr, logEnd: record.log_end, highWatermark: record.high_watermark });
    this.hasLogs = true;
  }

  // Offsets of a live cluster, which its control log does not have. Roles are those of the log if it knows newer ones.
  observe(tp, { now_ms: at, leader, leader_epoch: epoch, isr, high_watermark: highWatermark, log_ends: logEnds }) {
    for (const [id, logEnd] of Object.entries(logEnds)) {
      const broker = Number(id);
      const series = seriesIn(this.replicas, `${broker}/${tp}`);
      const last = series.last;
      if (last && last.at > at) continue;
      const isOlder = last?.role && last.role !== "none" && last.epoch > epoch;
      const role = leader === broker ? "leader" : leader === null ? "offline" : "follower";
      const known = isOlder ? last : { role, leader, epoch, isr: role === "leader" ? isr : null, pending: null };
      series.push({ ...known, at, logEnd: logEnd ?? last?.logEnd, highWatermark: role === "leader" ? highWatermark : null });
    }
    this.hasLogs = true;
    this.end = Math.max(this.end, at);
  }

  _on_drill(record) {
    this.faults.push(record);
  }

  // --- only in simulated runs

  _on_fault(record) {
    this.faults.push(record);
    this._isSimulated = true;
    const broker = record.broker_id;
    const series = broker >= 0 ? seriesIn(this.up, broker) : null;
    if (record.name === "crash" || record.name === "power") this._down(broker, record.at_ms);
    else if (record.name === "restart") series.push({ at: record.at_ms, state: "up" });
    else if (record.name === "pause") {
      series.push({ at: record.at_ms, state: "paused" });
      series.push({ at: record.at_ms + record.duration_ms, state: "up" });
    }
  }

  _down(broker, at) {
    const series = seriesIn(this.up, broker);
    while (series.last && series.last.at > at) series.items.pop();
    series.push({ at, state: "down" });
    for (const [key, replica] of this.replicas) {
      if (key.startsWith(`${broker}/`)) replica.push({ ...replica.last, at, role: "none" });
    }
    for (const [key, known] of this.known) if (key.startsWith(`${broker}/`)) known.push({ at, leader: null, epoch: null });
    for (const event of this.events) {
      if (event.broker !== broker || event.done !== null) continue;
      Object.assign(event, { done: at, outcome: "lost" });
      if (event.started !== null) this._ended(event);
    }
    this._endTerm(broker, at);
  }

  _on_session(record) {
    // A restarted process opens its session before that of its predecessor ends.
    this._hasSessions = true;
    if (record.state === "opened") this._open.set(record.broker_id, record.session_id);
    else if (this._open.get(record.broker_id) !== record.session_id) return;
    seriesIn(this.sessions, record.broker_id).push({ at: record.at_ms, isOpen: record.state === "opened", id: record.session_id });
    const series = seriesIn(this.up, record.broker_id);
    if (!series.items.length) series.push({ at: record.at_ms, state: "up" });
  }

  // --- sessions of a live cluster: the broker's own records, and the registrations that the controller sees

  _session(broker, at, isOpen, id) {
    seriesIn(this.sessions, broker).push({ at, isOpen, id });
  }

  _on_session_changed(record) {
    this._session(record.broker_id, record.at_ms, record.session === "established", record.session_id);
  }

  _on_registration_changed(record) {
    const event = this.eventOf(record.broker_id, record.number, record.at_ms);
    const isOpen = record.registration === "registered";
    this.registrations.push(record);
    this.brokers.add(record.about_broker);
    if (isOpen) this.brokerEpochs.set(record.about_broker, record.broker_epoch);
    if (this._hasSessions) return;
    const series = seriesIn(this.sessions, record.about_broker);
    // ZooKeeper has reported the change when the event was queued. A broker records its sessions itself, unless it is not klamm.
    const at = event?.queued ?? record.at_ms;
    const known = series.at(record.at_ms);
    if (!known || known.isOpen !== isOpen) this._session(record.about_broker, isOpen ? record.at_ms : at, isOpen, known?.id ?? null);
  }

  _on_watch(record) {
    const isController = this._terms.has(record.broker_id);
    this._message({ type: "watch", from: ZOOKEEPER, to: isController ? CONTROLLER : record.broker_id, start: record.at_ms,
      end: record.at_ms, owner: record.broker_id, record });
  }

  _on_tool_write(record) {
    this._message({ type: "tool", from: "outside", to: ZOOKEEPER, start: record.at_ms, end: record.at_ms, record });
  }

  // --- questions

  sortedBrokers() {
    return [...this.brokers].filter((broker) => broker >= 0).sort((a, b) => a - b);
  }

  controllerAt(time) {
    return this.terms.findLast((term) => term.start <= time && (term.end === null || term.end > time)) || null;
  }

  // The partition as a broker's cache has it. The record of an update lists 16 partitions; the others are derived: the
  // controller queues an update for each of its decisions, in their order, so an update of an event completes all before it.
  knownOf(broker, tp) {
    const [listed, updates, truth, up] = [this.known.get(`${broker}/${tp}`), this.updates.get(broker), this.truth.get(tp), this.up.get(broker)];
    if (!updates || !truth) return listed ?? null;
    const key = `${broker}/${tp}`;
    const state = [listed, updates, truth, up].map((series) => series?.items.length ?? 0).join();
    const merged = this._merged.get(key);
    if (merged?.state === state) return merged.series;
    const found = [...(listed?.items ?? []), ...(up?.items ?? []).filter((it) => it.state === "down").map(({ at }) => ({ at, leader: null, epoch: null }))];
    for (const update of updates.items) {
      const decided = truth.items.findLast((it) => it.controllerEpoch < update.controllerEpoch || (it.controllerEpoch === update.controllerEpoch && it.number <= update.number));
      if (update.number !== null && decided) found.push({ at: update.at, leader: decided.leader, epoch: decided.epoch, isDerived: true });
    }
    const series = new Series();
    for (const item of found.sort((a, b) => a.at - b.at)) {
      if (!item.isDerived || isNews(series.last, item)) series.push(item);
    }
    this._merged.set(key, { state, series });
    return series;
  }

  // The newest update that a broker's cache has applied, and how many it has not applied that were sent to it.
  updateAt(broker, time, isStale = false) {
    // A stale cache without an update on the way: the controller has sent none since it decided, as to a broker without a session.
    const metadata = this.metadata.get(broker)?.at(time);
    if (!metadata) return null;
    const behind = this.metadataLag.get(broker)?.at(time)?.size ?? 0;
    return { epoch: metadata.epoch, behind, text: `update ${metadata.count}, ${behind ? `${behind} behind` : isStale ? "no newer one sent" : "current"}` };
  }

  isStale(broker, tp, time) {
    // Whether a broker's cache names another leader or epoch than the controller has decided.
    const truth = this.truth.get(tp)?.at(time);
    const known = this.knownOf(broker, tp)?.at(time);
    if (!truth || !known || known.epoch === null) return false;
    if (truth.leader === DELETED) return known.leader !== DELETED;
    // A cache may know more than the log has: a controller that dies has not written its last decisions. Epochs of a topic
    // that was created again are lower, and the cache knows the earlier topic until later.
    if (known.epoch > truth.epoch) return known.at < truth.at;
    return known.epoch < truth.epoch || known.leader !== truth.leader;
  }
}
