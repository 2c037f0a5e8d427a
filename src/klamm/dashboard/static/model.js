// A run as the charts show it: events, messages, roles and queues, joined from records of the control log.
// The same code reads a live cluster's log and a simulated run; a simulated run has a few kinds more.

import { Series, seriesIn } from "./series.js";

export const ZOOKEEPER = "zk";
export const CONTROLLER = "controller";
const CHANGES = new Set(["election", "leader_change", "isr_change"]);
export const name = (topic, partition) => `${topic}-${partition}`;

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
    this.partitions = new Set();
    this.up = new Map();
    this.sessions = new Map();
    this.truth = new Map();
    this.replicas = new Map();
    this.metadata = new Map();
    this.known = new Map();
    this.eventQueue = new Series();
    this.requestQueues = new Map();
    this.coalesced = [];
    this.longest = 0;
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
    this._sorted = true;
    this._isSimulated = false;
  }

  add(records) {
    for (const record of records) this._add(record);
    if (!this._sorted) {
      this.messages.sort((a, b) => a.start - b.start);
      this.events.sort((a, b) => a.queued - b.queued);
      this.changes.sort((a, b) => a.at_ms - b.at_ms);
      this.records.sort((a, b) => a.at_ms - b.at_ms);
      this._sorted = true;
    }
    return this;
  }

  _add(record) {
    const last = this.records[this.records.length - 1];
    if (last && last.at_ms > record.at_ms) this._sorted = false;
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
    const last = this.messages[this.messages.length - 1];
    if (last && last.start > fields.start) this._sorted = false;
    const message = { end: null, answered: null, error: "NONE", partitions: [], ...fields };
    message.way = `${message.type}:${message.from}:${message.to}`;
    this.messages.push(message);
    this._longer(message);
    return message;
  }

  _longer(message) {
    this.longest = Math.max(this.longest, (message.end ?? message.start) - message.start);
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
      const last = this.events[this.events.length - 1];
      if (last && last.queued > event.queued) this._sorted = false;
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
      this._message({ type: "AlterPartition", from: record.about_broker, to: CONTROLLER, start: sent ? sent.at_ms : record.at_ms,
        end: record.at_ms, epoch: record.controller_epoch, event, proposal: sent || null, record, owner: record.broker_id });
    }
  }

  _on_event_started(record) {
    const event = this._event(record);
    event.started = record.at_ms;
    event.queueMs = record.queue_ms;
    event.epoch = record.controller_epoch || event.epoch;
    this._count(record.at_ms, -1, record.controller_epoch || event.record.controller_epoch);
  }

  _on_event_done(record) {
    const event = this._event(record);
    if (record.outcome === "refused") this._count(record.at_ms, -1, event.record.controller_epoch);
    event.done = record.at_ms;
    event.outcome = record.outcome;
    event.epoch = record.controller_epoch || event.epoch;
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
    const isNewer = !last || record.leader_epoch > last.epoch || (record.leader_epoch === last.epoch && record.partition_epoch >= last.version);
    if (isNewer) {
      series.push({ at: record.at_ms, leader: record.leader, epoch: record.leader_epoch, isr: record.isr,
        version: record.partition_epoch, record });
    }
  }

  // --- control requests

  _channel(record, target) {
    return `${record.controller_epoch}:${target}`;
  }

  _on_request_queued(record) {
    seriesIn(this.requestQueues, record.target).push({ at: record.at_ms, size: record.queue_size });
  }

  _on_request_coalesced(record) {
    this.coalesced.push(record);
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
    this._sent.set(`${channel}:${record.correlation_id}`, message);
    this._lastSent.set(channel, message);
    const early = this._early.get(`${channel}:${record.correlation_id}`);
    if (early !== undefined && early >= record.at_ms) this._arrive(message, early);
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
    message.error = record.error !== "NONE" ? record.error : record.partition_errors.length ? record.partition_errors[0].error : "NONE";
  }

  _on_request_acknowledged(record) {
    const message = this._find(record, record.target);
    if (!message) return;
    message.answered = record.at_ms;
    if (record.error !== "NONE") message.error = record.error;
    else if (record.failed_partition_count && message.error === "NONE") message.error = `${record.failed_partition_count} failed`;
    if (message.end === null) this._arrive(message, (message.start + record.at_ms) / 2);
  }

  _on_proposal_sent(record) {
    if (!this._proposals.has(record.broker_id)) this._proposals.set(record.broker_id, []);
    this._proposals.get(record.broker_id).push(record);
  }

  _on_answered(record) {
    this._message({ type: "AlterPartition", from: CONTROLLER, to: record.target, start: record.at_ms, end: record.at_ms, isAnswer: true,
      error: record.error, owner: record.broker_id, record });
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
    seriesIn(this.metadata, record.broker_id).push({ at: record.at_ms, count: record.update_count, epoch: record.controller_epoch,
      controller: record.controller_id, live: record.live_brokers });
    for (const state of record.partitions) {
      const tp = name(state.topic, state.partition);
      seriesIn(this.known, `${record.broker_id}/${tp}`).push({ at: record.at_ms, leader: state.leader, epoch: state.leader_epoch });
    }
    this._noteLive(record);
  }

  _noteLive(record) {
    // Without records of faults, the lists of live brokers tell who is up.
    const live = new Set(record.live_brokers);
    for (const broker of live) this.brokers.add(broker);
    for (const broker of this.brokers) {
      const isUp = live.has(broker);
      if (!this._isSimulated && this._live.get(broker) !== isUp) {
        this._live.set(broker, isUp);
        if (isUp) seriesIn(this.up, broker).push({ at: record.at_ms, state: "up" });
        else this._down(broker, record.at_ms);
      }
    }
  }

  _on_role_changed(record) {
    if (record.correlation_id !== null) {
      const message = this._applied(record);
      if (message) (message.roles ||= []).push(record);
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
    for (const event of this.events) if (event.broker === broker && event.done === null) Object.assign(event, { done: at, outcome: "lost" });
    this._endTerm(broker, at);
  }

  _on_session(record) {
    // A restarted process opens its session before that of its predecessor ends.
    if (record.state === "opened") this._open.set(record.broker_id, record.session_id);
    else if (this._open.get(record.broker_id) !== record.session_id) return;
    seriesIn(this.sessions, record.broker_id).push({ at: record.at_ms, isOpen: record.state === "opened", id: record.session_id });
    const series = seriesIn(this.up, record.broker_id);
    if (!series.items.length) series.push({ at: record.at_ms, state: "up" });
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

  isStale(broker, tp, time) {
    // Whether a broker's cache names another leader or epoch than the controller has decided.
    const truth = this.truth.get(tp)?.at(time);
    const known = this.known.get(`${broker}/${tp}`)?.at(time);
    if (!truth || !known || known.epoch === null) return false;
    return known.epoch !== truth.epoch || known.leader !== truth.leader;
  }
}
