// Where everything stands in the chart: lanes from top to bottom, strips below each lane, queues at the bottom.

import { CONTROLLER, ZOOKEEPER } from "./model.js";

export const AXIS = 28;
const BAR = 20;
const ROW = BAR + 17; // a bar and the name of its term

export function termRows(run) {
  // A deposed controller that does not know it yet gets a row of its own.
  const ends = [];
  const rows = new Map();
  for (const term of run.terms) {
    let row = ends.findIndex((end) => end !== null && end <= term.start);
    if (row < 0) row = ends.length;
    ends[row] = term.end ?? Infinity;
    rows.set(`${term.broker}:${term.epoch}`, row);
  }
  return { rows, count: Math.max(1, ends.length) };
}

export function layout(run, options = {}) {
  const lanes = new Map();
  const queues = [];
  const hasLogs = options.hasLogs ?? false;
  const { rows, count } = termRows(run);
  const brokers = run.sortedBrokers();
  // A tall window gives the lanes more room, and the arrows more length.
  const spare = (options.available ?? 0) - (262 + count * ROW + brokers.length * 128);
  const gap = 14 + Math.max(0, Math.min(26, spare / (brokers.length + 3)));
  let top = AXIS;
  lanes.set(ZOOKEEPER, { id: ZOOKEEPER, title: "ZooKeeper", top, height: 48, y: top + 24, strips: [] });
  top += 48 + gap;
  const height = count * ROW + 16;
  lanes.set(CONTROLLER, { id: CONTROLLER, title: "Controller", top, height, y: top + height - 10, rows, bar: BAR, row: ROW, strips: [] });
  top += height + gap;
  for (const broker of brokers) {
    const strips = [{ kind: "role", top: top + 38, height: 16 }];
    if (hasLogs) strips.push({ kind: "log", top: top + 56, height: 20 });
    const last = strips[strips.length - 1];
    strips.push({ kind: "cache", top: last.top + last.height + 2, height: 13 });
    const bottom = strips[strips.length - 1].top + 16;
    lanes.set(broker, { id: broker, title: `Broker ${broker}`, top, height: bottom - top, y: top + 18, strips });
    top = bottom + gap;
  }
  queues.push({ id: "events", title: "Event queue", top, height: 34 });
  top += 34 + 6;
  for (const broker of brokers) {
    queues.push({ id: broker, title: `Requests for ${broker}`, top, height: 20 });
    top += 20 + 5;
  }
  return { lanes, queues, height: top + 6 };
}

export function barTop(lane, event) {
  const row = lane.rows.get(`${event.broker}:${event.epoch}`) ?? 0;
  return lane.top + 16 + row * lane.row;
}
