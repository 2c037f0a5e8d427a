// The strips below each broker's lane, and the queues at the bottom of the chart.

import { box, clipped } from "./paint.js";
import { lowerBound, upperBound } from "./series.js";

const TEXT = 40; // stretches of a piece with a readable text

export function drawStrips(chart) {
  const { run, layout, partition } = chart;
  for (const lane of layout.lanes.values()) {
    for (const strip of lane.strips) {
      const series = strip.kind === "cache" ? run.knownOf(lane.id, partition) : run.replicas.get(`${lane.id}/${partition}`);
      if (strip.kind === "log") drawLog(chart, strip, series);
      else drawStates(chart, lane, strip, series);
    }
  }
}

function drawStates(chart, lane, strip, series) {
  const { ctx, run, colours, view } = chart;
  ctx.globalAlpha = 0.5;
  ctx.fillStyle = colours.faint;
  box(ctx, 0, strip.top, chart.width, strip.height, 3);
  ctx.fill();
  ctx.globalAlpha = 1;
  if (!series) return;
  const end = Math.max(run.end, view.end);
  const pieces = strip.kind === "cache" ? cachePieces(chart, lane, series, end) : rolePieces(chart, series, end);
  for (const { from, to, colour, text, strong } of pieces) {
    const x0 = chart.x(from);
    const x1 = chart.x(to);
    ctx.globalAlpha = strong ? 0.95 : 0.4;
    ctx.fillStyle = colour;
    box(ctx, x0 + 0.5, strip.top, x1 - x0 - 1, strip.height, 3);
    ctx.fill();
    ctx.globalAlpha = 1;
    ctx.fillStyle = strong ? colours.bg : colours.text;
    if (strip.height > 10) clipped(ctx, text, Math.max(0, x0) + 5, strip.top + strip.height / 2 + 0.5, Math.min(x1, chart.width) - Math.max(0, x0) - 8);
  }
}

export function rolePieces(chart, series, end) {
  // Neighbours with equal texts are one piece: log ends change often, roles seldom.
  const pieces = [];
  for (const [entry, from, to] of series.between(chart.view.start, chart.view.end, end, chart.stretchMs / 4)) {
    if (entry.role === "none" || !entry.role) continue;
    const colour = entry.role === "leader" ? chart.colours.leader : entry.role === "follower" ? chart.colours.follower : chart.colours.refused;
    for (const [isr, start, stop] of isrs(chart, entry, from, to)) {
      const members = isr ? `  ISR ${isr.join(",")}${entry.pending ? ` → ${entry.pending.join(",")}` : ""}` : "";
      const text = entry.role === "leader" ? `leader e${entry.epoch}${members}` : `${entry.role} e${entry.epoch}`;
      const last = pieces[pieces.length - 1];
      if (last && last.text === text && last.to >= start - 0.01) last.to = stop;
      else pieces.push({ from: start, to: stop, text, colour, strong: entry.role === "leader" });
    }
  }
  return pieces;
}

function* isrs(chart, entry, from, to) {
  // The ISR that the leader itself has reported, or else that of the controller's decisions in the leader's epoch.
  const truth = entry.role === "leader" && !entry.isr ? chart.run.truth.get(chart.partition) : null;
  if (!truth || !truth.at(to)) {
    yield [entry.isr, from, to];
    return;
  }
  if (!truth.at(from)) yield [null, from, Math.min(to, truth.items[0].at)];
  for (const [decided, start, stop] of truth.between(from, to, to, chart.stretchMs / 4)) {
    if (start < stop) yield [decided.epoch === entry.epoch ? decided.isr : null, start, stop];
  }
}

export function cachePieces(chart, lane, series, end) {
  // Split where the controller decides: the same entry is fresh before and stale after. And where updates are sent or applied.
  const { run, partition, view, colours } = chart;
  const pieces = [];
  const decided = run.truth.get(partition)?.items || [];
  for (const [entry, from, to] of series.between(view.start, view.end, end)) {
    if (entry.epoch === null) continue;
    const cuts = [from, ...decided.map((truth) => truth.at).filter((at) => at > from && at < to), ...updateCuts(chart, lane, from, to), to].sort((a, b) => a - b);
    const known = entry.leader === -2 ? "forgets it" : `knows leader ${entry.leader} e${entry.epoch}`;
    for (let index = 0; index + 1 < cuts.length; index += 1) {
      const isStale = run.isStale(lane.id, partition, cuts[index]);
      const update = run.updateAt(lane.id, cuts[index], isStale);
      const text = `${isStale ? "stale: " : ""}${known}${update ? `  ${update.text}` : ""}`;
      const last = pieces[pieces.length - 1];
      if (last && last.text === text && last.to >= cuts[index] - 0.01) last.to = cuts[index + 1];
      else pieces.push({ from: cuts[index], to: cuts[index + 1], text, colour: isStale ? colours.refused : colours.umr, strong: isStale });
    }
  }
  return pieces;
}

function updateCuts(chart, lane, from, to) {
  // Of many updates, those whose numbers have room beside each other.
  const found = [chart.run.metadata, chart.run.metadataLag].map((map) => map.get(lane.id)?.between(from, to, to, chart.stretchMs * TEXT) ?? []);
  return found.flatMap((pieces) => Array.from(pieces, ([, start]) => start).filter((at) => at > from && at < to));
}

function drawLog(chart, strip, series) {
  const { ctx, run, colours, view } = chart;
  const most = Math.max(8, ...run.sortedBrokers().map((broker) => run.replicas.get(`${broker}/${chart.partition}`)?.at(view.end)?.logEnd ?? 0));
  const y = (offset) => strip.top + strip.height - (offset / most) * (strip.height - 2);
  if (!series) return;
  const pieces = [...series.between(view.start, view.end, Math.max(run.end, view.end), chart.stretchMs / 2)].filter(([entry]) => entry.logEnd !== undefined && entry.role !== "none");
  for (const [field, colour, alpha] of [["logEnd", colours.follower, 0.3], ["highWatermark", colours.leader, 0.5]]) {
    ctx.fillStyle = colour;
    ctx.globalAlpha = alpha;
    for (const [entry, from, to] of pieces) {
      const top = y(entry[field] ?? 0);
      ctx.fillRect(chart.x(from), top, chart.x(to) - chart.x(from) + 0.5, strip.top + strip.height - top);
    }
  }
  ctx.globalAlpha = 1;
  for (const [entry, from, to] of pieces) {
    chart.hits.push({ kind: "box", x0: chart.x(from), y0: strip.top, x1: chart.x(to), y1: strip.top + strip.height, type: "replica", item: entry });
  }
}

export function drawQueues(chart) {
  const { ctx, run, layout, colours, view } = chart;
  for (const queue of layout.queues) {
    const series = queue.id === "events" ? run.eventQueue : run.requestQueues.get(queue.id);
    ctx.fillStyle = colours.line;
    ctx.fillRect(0, queue.top + queue.height, chart.width, 1);
    if (!series) continue;
    const most = Math.max(4, ...(queue.id === "events" ? [series] : [...run.requestQueues.values()]).map((it) => it.largest));
    ctx.fillStyle = colours.queue;
    ctx.globalAlpha = 0.75;
    for (const [size, from, to, at] of sizes(chart, series)) {
      if (!size) continue;
      const height = (size / most) * (queue.height - 2);
      const x0 = chart.x(from);
      const width = Math.max(1.5, chart.x(to) - x0);
      ctx.fillRect(x0, queue.top + queue.height - height, width, height);
      chart.hits.push({ kind: "box", x0, y0: queue.top, x1: x0 + width, y1: queue.top + queue.height, type: "queue", item: { at, size, title: queue.title } });
    }
    ctx.globalAlpha = 1;
  }
  drawCoalesced(chart);
}

function* sizes(chart, series) {
  // Every size of the window, or the largest of each stretch if there are more than pixels.
  const { run, view } = chart;
  if (series.count(view.start, view.end) > chart.most) {
    for (const [size, from, to] of series.peaks(view.start, view.end, chart.stretchMs)) yield [size, from, to, from];
    return;
  }
  for (const [entry, from, to] of series.between(view.start, view.end, Math.max(run.end, view.end))) yield [entry.size, from, to, entry.at];
}

function drawCoalesced(chart) {
  const { ctx, run, layout, colours } = chart;
  const places = new Map(layout.queues.map((queue) => [queue.id, queue]));
  ctx.fillStyle = colours.accent;
  for (const [record, more] of mergedRequests(chart)) {
    const queue = places.get(record.target);
    if (!queue) continue;
    const x = chart.x(record.at_ms);
    ctx.beginPath();
    ctx.arc(x, queue.top + 4, 2.6, 0, 7);
    ctx.fill();
    chart.hits.push({ kind: "box", x0: x - 4, y0: queue.top, x1: x + 4, y1: queue.top + 9, type: "coalesced", item: record, more });
  }
}

function mergedRequests({ run, view, most, stretchMs }) {
  const at = (record) => record.at_ms;
  const first = lowerBound(run.coalesced, view.start, at);
  const last = upperBound(run.coalesced, view.end, at);
  if (last - first <= most) return run.coalesced.slice(first, last).map((record) => [record, 0]);
  return run.coalescedLevels.between(run.coalesced, view.start, view.end, stretchMs).found.map((it) => [it.item, it.accepted - 1]);
}
