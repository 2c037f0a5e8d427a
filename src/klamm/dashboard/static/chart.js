// The chart of the control plane on a canvas: lanes, arrows, strips and queues over time. It draws only what is visible.

import { layout, AXIS, barTop } from "./layout.js";
import { CONTROLLER, lastOf, SLOW_MS, ZOOKEEPER } from "./model.js";
import { arrow, box, clipped, COLOURS, cross, palette, ticks } from "./paint.js";
import { lowerBound, upperBound } from "./series.js";
import { drawQueues, drawStrips } from "./strips.js";

const FONT = '11px ui-sans-serif, system-ui, "Segoe UI", Roboto, sans-serif';
const LABELS_UP_TO = 160;
const STRETCH = 2; // pixels that share one arrow per way, one bar and one mark, if there are more items than pixels
const SHADES = [[1, 0.3], [8, 0.5], [Infinity, 0.8]]; // of a stretch's arrow, by the number of its messages

export class Chart {
  constructor(canvas, { onSelect, onHover, onView, clock }) {
    this.canvas = canvas;
    this.ctx = canvas.getContext("2d");
    this.run = null;
    this.view = { start: 0, end: 1000 };
    this.time = 0;
    this.partition = "";
    this.selected = null;
    this.hits = [];
    this.clock = clock;
    this.frames = [];
    this._listen(onSelect, onHover, onView);
    this.retheme();
  }

  retheme() {
    this.colours = palette();
    this.request();
  }

  setRun(run) {
    this.run = run;
    const available = this.canvas.parentElement.parentElement.clientHeight;
    this.layout = layout(run, { available, hasLogs: run.hasLogs });
    this.request();
  }

  request() {
    if (this._pending) return;
    this._pending = true;
    requestAnimationFrame(() => {
      this._pending = false;
      if (!this.run) return;
      const began = performance.now();
      this.draw();
      this.frames.push(performance.now() - began);
      if (this.frames.length > 500) this.frames.shift();
    });
  }

  x(time) {
    return ((time - this.view.start) / (this.view.end - this.view.start)) * this.width;
  }

  timeAt(x) {
    return this.view.start + (x / this.width) * (this.view.end - this.view.start);
  }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    const width = this.canvas.parentElement.clientWidth;
    const height = Math.max(this.layout.height, 60);
    if (this.width !== width || this.height !== height || this.ratio !== ratio) {
      Object.assign(this, { width, height, ratio });
      this.canvas.width = width * ratio;
      this.canvas.height = height * ratio;
      this.canvas.style.height = `${height}px`;
    }
    this.ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  draw() {
    this.resize();
    const { ctx, colours } = this;
    ctx.clearRect(0, 0, this.width, this.height);
    ctx.font = FONT;
    ctx.textBaseline = "middle";
    this.hits = [];
    this._axis();
    this._lanes();
    drawStrips(this);
    const messages = this._visibleMessages();
    if (messages) this._arrows(messages);
    else this._bundles();
    this._events();
    this._changes();
    this._faults();
    drawQueues(this);
    this._veil();
    if (messages && messages.length < LABELS_UP_TO) this._labels(messages);
    ctx.fillStyle = colours.text;
  }

  _axis() {
    const { ctx, colours } = this;
    const { found, step } = ticks(this.view.start, this.view.end, this.width);
    ctx.textAlign = "center";
    for (const at of found) {
      const x = this.x(at);
      ctx.fillStyle = colours.line;
      ctx.fillRect(x, AXIS - 6, 1, this.height);
      ctx.fillStyle = colours.muted;
      ctx.fillText(this.clock(at, step), x, 11);
    }
    ctx.textAlign = "left";
  }

  _lanes() {
    const { ctx, colours, run } = this;
    for (const lane of this.layout.lanes.values()) {
      ctx.fillStyle = colours.panel;
      box(ctx, 0, lane.top, this.width, lane.height, 6);
      ctx.fill();
      if (lane.id === CONTROLLER) this._terms(lane);
      else if (lane.id !== ZOOKEEPER) this._states(lane);
      ctx.fillStyle = colours.faint;
      if (lane.id !== CONTROLLER) ctx.fillRect(0, lane.y - 0.5, this.width, 1);
    }
    for (const fault of run.faults) {
      if (fault.place === "zk" && fault.duration_ms) {
        const lane = this.layout.lanes.get(ZOOKEEPER);
        this._shade(this.x(fault.at_ms), this.x(fault.at_ms + fault.duration_ms), lane.top, lane.height, colours.fault, "unreachable");
      }
    }
  }

  _terms(lane) {
    const { ctx, colours, run } = this;
    for (const term of run.terms) {
      const x0 = this.x(term.start);
      const x1 = this.x(term.end ?? run.end);
      if (x1 < 0 || x0 > this.width) continue;
      const row = lane.rows.get(`${term.broker}:${term.epoch}`);
      const top = lane.top + 2 + row * lane.row;
      ctx.save();
      ctx.globalAlpha = 0.13;
      ctx.fillStyle = colours.term;
      box(ctx, x0, top, x1 - x0, lane.row - 2, 5);
      ctx.fill();
      ctx.restore();
      const successor = run.terms.find((other) => other.epoch > term.epoch && other.start < (term.end ?? run.end));
      const stop = successor ? Math.max(x0, this.x(successor.start)) : x1;
      const left = Math.max(6, x0 + 6);
      ctx.fillStyle = colours.term;
      clipped(ctx, `epoch ${term.epoch} on broker ${term.broker}`, left, top + 7, Math.min(stop, this.width) - left);
      if (successor && stop < this.width) {
        ctx.fillStyle = colours.refused;
        const from = Math.max(6, stop + 4);
        clipped(ctx, "deposed, and does not know it", from, top + 7, Math.min(x1, this.width) - from);
      }
    }
  }

  _shade(x0, x1, top, height, colour, text) {
    const { ctx } = this;
    if (x1 < 0 || x0 > this.width) return;
    ctx.save();
    ctx.globalAlpha = 0.16;
    ctx.fillStyle = colour;
    box(ctx, x0, top, x1 - x0, height, 6);
    ctx.fill();
    ctx.globalAlpha = 1;
    ctx.fillStyle = colour;
    clipped(ctx, text, Math.max(4, x0 + 6), top + 9, Math.min(x1, this.width) - Math.max(0, x0) - 10);
    ctx.restore();
  }

  _states(lane) {
    const { colours, run } = this;
    const end = Math.max(run.end, this.view.end);
    for (const [entry, from, to] of run.up.get(lane.id)?.between(this.view.start, this.view.end, end) || []) {
      if (entry.state !== "up") this._shade(this.x(from), this.x(to), lane.top, lane.height, colours.fault, entry.state);
    }
    for (const [entry, from, to] of run.sessions.get(lane.id)?.between(this.view.start, this.view.end, end) || []) {
      this.ctx.fillStyle = entry.isOpen ? colours.leader : colours.refused;
      this.ctx.globalAlpha = 0.75;
      this.ctx.fillRect(this.x(from), lane.y - 1, this.x(to) - this.x(from), 2);
      this.ctx.globalAlpha = 1;
      this.hits.push({ kind: "box", x0: this.x(from), y0: lane.y - 2, x1: this.x(to), y1: lane.y + 2, type: "session", item: { ...entry, broker: lane.id } });
    }
  }

  get most() {
    return Math.max(600, this.width); // more items than this are drawn by stretches
  }

  get stretchMs() {
    return ((this.view.end - this.view.start) / this.width) * STRETCH;
  }

  _visibleMessages() {
    // The messages of the window, or null if they are more than its pixels.
    const { run, view } = this;
    const { messages } = run;
    const start = (message) => message.start;
    const inside = lowerBound(messages, view.start, start);
    const last = upperBound(messages, view.end, start);
    if (last - inside > this.most) return null;
    return [...this._earlier(inside), ...messages.slice(inside, last)];
  }

  _earlier(inside) {
    // Messages that begin before the window and end in it or behind it.
    const { run, view } = this;
    const first = lowerBound(run.messages, view.start - SLOW_MS, (message) => message.start);
    return [...this._slow("start"), ...run.messages.slice(first, inside).filter((message) => lastOf(message) >= view.start)];
  }

  _slow(field) {
    // Messages (by their field `start`) or events (by `queued`) that begin long before the window and end in it or behind it.
    const { run, view } = this;
    return [...run.slow].filter((it) => it[field] < view.start - SLOW_MS && (it.done ?? lastOf(it)) >= view.start);
  }

  _bundles() {
    // One arrow per way and stretch: the slowest message stands for the others. Refused ones have an arrow of their own.
    const { ctx, colours, run, view } = this;
    const lines = new Map();
    const refused = [];
    for (const { way, accepted, refused: refusals, item, bad } of run.messageLevels.between(run.messages, view.start, view.end, this.stretchMs).found) {
      if (refusals) refused.push([bad, refusals - 1]);
      if (!accepted) continue;
      const shade = SHADES.findIndex(([most]) => accepted <= most);
      const key = `${COLOURS[way.slice(0, way.indexOf(":"))] || "muted"}:${shade}`;
      if (!lines.has(key)) lines.set(key, []);
      lines.get(key).push(this._bundle(item, accepted - 1));
    }
    for (const [key, ends] of lines) {
      const [colour, shade] = key.split(":");
      ctx.globalAlpha = SHADES[shade][1];
      ctx.strokeStyle = colours[colour];
      ctx.lineWidth = 1.4;
      ctx.beginPath();
      for (const { x0, y0, x1, y1 } of ends) {
        ctx.moveTo(x0, y0);
        ctx.lineTo(x1, y1);
      }
      ctx.stroke();
      ctx.globalAlpha = 1;
    }
    for (const [message, more] of refused) {
      const { x0, y0, x1, y1 } = this._bundle(message, more);
      arrow(ctx, x0, y0, x1, y1, { colour: colours.refused, width: 1.8, head: 0 });
      cross(ctx, x1, y1, colours.refused);
    }
    this._arrows([...this._slow("start"), ...(this.selected?.type === "message" ? [this.selected.item] : [])]);
  }

  _bundle(message, more) {
    const hit = { kind: "line", ...this.ends(message), type: "message", item: message, more };
    this.hits.push(hit);
    return hit;
  }

  ends(message) {
    // The two points of a message's arrow.
    const { lanes } = this.layout;
    const height = (id) => {
      if (id === "outside") return lanes.get(ZOOKEEPER).top - 4;
      if (id === CONTROLLER) {
        const lane = lanes.get(CONTROLLER);
        const isDown = id === message.from ? message.to !== ZOOKEEPER : message.from !== ZOOKEEPER;
        return isDown ? lane.top + lane.height - 6 : lane.top + 12;
      }
      return lanes.get(id)?.y ?? 0;
    };
    const end = message.end ?? message.start + (this.view.end - this.view.start) * 0.012;
    const from = height(message.from);
    const to = height(message.to);
    return { x0: this.x(message.start), y0: from, x1: this.x(end), y1: message.end === null ? from + (to - from) * 0.35 : to };
  }

  _arrows(messages) {
    const { ctx, colours } = this;
    const isCrowded = messages.length > 600;
    for (const message of messages) {
      const { x0, y0, x1, y1 } = this.ends(message);
      const isRefused = message.error !== "NONE";
      const colour = isRefused ? colours.refused : colours[COLOURS[message.type]] || colours.muted;
      const isSelected = this.selected?.item === message;
      const isQuiet = message.type === "watch" || message.type === "tool" || message.isAnswer;
      const dash = message.end === null ? [3, 3] : isQuiet ? [2, 3] : [];
      const alpha = isSelected ? 1 : isCrowded && !isRefused ? 0.35 : isQuiet ? 0.6 : 0.9;
      arrow(ctx, x0, y0, x1, y1, { colour, dash, alpha, width: isSelected ? 3 : isRefused ? 1.8 : 1.4, head: isCrowded ? 0 : isQuiet ? 4.5 : 6.5 });
      if (message.type === "znodes" && message.answered !== null && !isCrowded) {
        arrow(ctx, x1, y1, this.x(message.answered), y0, { colour, dash: [2, 3], alpha: 0.5, width: 1, head: 4 });
      }
      if (isRefused) cross(ctx, x1, y1, colours.refused);
      this.hits.push({ kind: "line", x0, y0, x1, y1, type: "message", item: message });
    }
  }

  _visibleEvents() {
    const { run, view } = this;
    const queued = (event) => event.queued;
    const inside = lowerBound(run.events, view.start, queued);
    const last = upperBound(run.events, view.end, queued);
    const slow = this._slow("queued");
    const first = lowerBound(run.events, view.start - SLOW_MS, queued);
    if (last - inside <= this.most) return [...slow, ...run.events.slice(first, last)];
    return [...slow, ...run.eventLevels.between(run.events, view.start, view.end, this.stretchMs).found.map((it) => it.item)];
  }

  _events() {
    const { ctx, colours, run, view } = this;
    const controller = this.layout.lanes.get(CONTROLLER);
    for (const event of this._visibleEvents()) {
      if (event.started === null || event.outcome === "refused") continue;
      const end = event.done ?? Math.min(run.end, view.end);
      if (end < view.start) continue;
      const x0 = this.x(event.started);
      const width = Math.max(2, this.x(end) - x0);
      const isOwn = event.epoch > 0;
      const lane = isOwn ? controller : this.layout.lanes.get(event.broker);
      if (!lane) continue;
      const top = isOwn ? barTop(lane, event) : lane.y - 6;
      const height = isOwn ? lane.bar : 12;
      const isSelected = this.selected?.item === event;
      ctx.globalAlpha = event.outcome === "done" || !event.outcome ? 1 : 0.75;
      ctx.fillStyle = event.outcome === "failed" || event.outcome === "lost" ? colours.fault : isOwn ? colours.event : colours.faint;
      if (width < 4 && !isSelected) ctx.fillRect(x0, top, width, height);
      else {
        box(ctx, x0, top, width, height, 4);
        ctx.fill();
      }
      ctx.globalAlpha = 1;
      if (isSelected) {
        ctx.strokeStyle = colours.text;
        ctx.lineWidth = 2;
        ctx.stroke();
      }
      ctx.fillStyle = isOwn ? colours.bg : colours.muted;
      clipped(ctx, event.name, Math.max(x0, 0) + 5, top + height / 2 + 0.5, Math.min(width, this.x(end)) - 8);
      this.hits.push({ kind: "box", x0, y0: top, x1: x0 + Math.max(width, 6), y1: top + height, type: "event", item: event });
    }
  }

  _visibleChanges() {
    // If there are more than pixels: the first of each three pixels, and those of the chosen partition.
    const { run, view } = this;
    const at = (change) => change.at_ms;
    const last = upperBound(run.changes, view.end, at);
    let index = lowerBound(run.changes, view.start, at);
    if (last - index <= this.most) return run.changes.slice(index, last);
    const found = [];
    const apart = (this.stretchMs / STRETCH) * 3;
    for (; index < last; index = lowerBound(run.changes, run.changes[index].at_ms + apart, at)) found.push(run.changes[index]);
    const own = run.truth.get(this.partition)?.between(view.start, view.end, view.end, this.stretchMs) || [];
    for (const [entry] of own) if (entry.record && entry.at >= view.start) found.push(entry.record);
    return found;
  }

  _changes() {
    const { ctx, colours } = this;
    const lane = this.layout.lanes.get(CONTROLLER);
    let lastX = -9;
    for (const change of this._visibleChanges()) {
      const isChosen = `${change.topic}-${change.partition}` === this.partition;
      const x = this.x(change.at_ms);
      if (x - lastX < 3 && !isChosen) continue;
      lastX = x;
      const y = lane.top + lane.height - 7;
      const size = isChosen ? 5.5 : 3.5;
      ctx.fillStyle = change.leader < 0 ? colours.refused : change.kind === "isr_change" ? colours.alter : colours.leader;
      ctx.globalAlpha = isChosen ? 1 : 0.6;
      ctx.beginPath();
      ctx.moveTo(x, y - size);
      ctx.lineTo(x + size, y);
      ctx.lineTo(x, y + size);
      ctx.lineTo(x - size, y);
      ctx.fill();
      ctx.globalAlpha = 1;
      if (this.selected?.item === change) {
        ctx.strokeStyle = colours.text;
        ctx.lineWidth = 2;
        ctx.stroke();
      }
      this.hits.push({ kind: "box", x0: x - 7, y0: y - 7, x1: x + 7, y1: y + 7, type: "change", item: change });
    }
  }

  _faults() {
    const { ctx, colours, run } = this;
    const cutOff = new Set(); // a slow broker is cut off from several: shaded once
    for (const fault of run.faults) {
      const x = this.x(fault.at_ms);
      const until = this.x(fault.at_ms + fault.duration_ms);
      if (Math.max(x + 80, until) < 0 || x > this.width + 4) continue;
      const id = fault.place === "zk" ? ZOOKEEPER : fault.place === "net" ? fault.link[1] : Number(fault.place);
      const lane = this.layout.lanes.get(id);
      if (!lane) continue;
      const isGood = fault.name === "restart";
      ctx.fillStyle = isGood ? colours.leader : colours.fault;
      ctx.beginPath();
      ctx.arc(x, lane.top + 9, 4, 0, 7);
      ctx.fill();
      if (fault.name === "cut" && !cutOff.has(fault.at_ms + id)) {
        cutOff.add(fault.at_ms + id);
        this._shade(x, until, lane.top, 33, colours.fault, "receives no requests");
      }
      this.hits.push({ kind: "box", x0: x - 6, y0: lane.top + 3, x1: x + 6, y1: lane.top + 15, type: "fault", item: fault });
    }
  }

  _labels(messages) {
    const { ctx, colours } = this;
    const taken = this.hits.filter((hit) => hit.kind === "box").map((hit) => [hit.x0, hit.y0, hit.x1, hit.y1]);
    for (const lane of this.layout.lanes.values()) for (const strip of lane.strips) taken.push([0, strip.top, this.width, strip.top + strip.height]);
    const order = [...messages].sort((a, b) => (b.error !== "NONE") - (a.error !== "NONE"));
    ctx.font = '10px ui-sans-serif, system-ui, "Segoe UI", Roboto, sans-serif';
    for (const message of order) {
      if (message.type === "watch" || message.isAnswer || message.start > this.time) continue;
      const text = label(message);
      const { x0, y0, x1, y1 } = this.ends(message);
      const width = ctx.measureText(text).width + 8;
      const isRefused = message.error !== "NONE";
      const places = isRefused ? [0.97, 0.7, 0.5, 0.85, 0.35] : [0.6, 0.8, 0.42, 0.9, 0.7, 0.5, 0.3];
      for (const share of places) {
        const x = x0 + (x1 - x0) * share + 5;
        const y = y0 + (y1 - y0) * share - 7;
        const rect = [x, y, x + width, y + 14];
        if (x < 2 || x + width > this.width - 2 || taken.some((other) => meets(rect, other))) continue;
        taken.push(rect);
        ctx.globalAlpha = 0.92;
        ctx.fillStyle = isRefused ? colours.refused : colours.bg;
        box(ctx, x, y, width, 14, 4);
        ctx.fill();
        ctx.globalAlpha = 1;
        ctx.fillStyle = isRefused ? "#fff" : colours[COLOURS[message.type]] || colours.text;
        ctx.fillText(text, x + 4, y + 7.5);
        this.hits.push({ kind: "box", x0: x, y0: y, x1: x + width, y1: y + 14, type: "message", item: message });
        break;
      }
    }
    ctx.font = FONT;
  }

  _veil() {
    const { ctx, colours } = this;
    const x = this.x(this.time);
    if (x < this.width) {
      ctx.globalAlpha = 0.78;
      ctx.fillStyle = colours.bg;
      ctx.fillRect(Math.max(0, x), AXIS - 6, this.width, this.height);
      ctx.globalAlpha = 1;
    }
    ctx.fillStyle = colours.accent;
    ctx.fillRect(x - 0.75, 20, 1.5, this.height);
    ctx.beginPath();
    ctx.moveTo(x - 6, 18);
    ctx.lineTo(x + 6, 18);
    ctx.lineTo(x, 27);
    ctx.fill();
  }

  // --- pointer

  hit(x, y) {
    let best = null;
    let distance = 6;
    for (const hit of this.hits) {
      if (hit.kind === "box" && x >= hit.x0 && x <= hit.x1 && y >= hit.y0 && y <= hit.y1) best = hit;
      else if (hit.kind === "line" && (!best || best.kind === "line")) {
        const away = distanceTo(x, y, hit);
        if (away < distance) [best, distance] = [hit, away];
      }
    }
    return best;
  }

  _listen(onSelect, onHover, onView) {
    const canvas = this.canvas;
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.offsetX, start: this.view.start, end: this.view.end, moved: false, onAxis: event.offsetY < AXIS };
      canvas.setPointerCapture(event.pointerId);
      if (drag.onAxis) onView({ time: this.timeAt(event.offsetX) });
    });
    canvas.addEventListener("pointermove", (event) => {
      if (drag?.onAxis) onView({ time: this.timeAt(event.offsetX) });
      else if (drag && (drag.moved || Math.abs(event.offsetX - drag.x) > 3)) {
        drag.moved = true;
        const shift = ((drag.x - event.offsetX) / this.width) * (drag.end - drag.start);
        onView({ start: drag.start + shift, end: drag.end + shift });
      } else if (!drag) onHover(this.hit(event.offsetX, event.offsetY), event);
    });
    canvas.addEventListener("pointerup", (event) => {
      if (drag && !drag.moved && !drag.onAxis) onSelect(this.hit(event.offsetX, event.offsetY));
      drag = null;
    });
    canvas.addEventListener("pointerleave", () => onHover(null));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey && Math.abs(event.deltaY) > Math.abs(event.deltaX) && !event.altKey) return;
      event.preventDefault();
      const span = this.view.end - this.view.start;
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        const shift = ((event.deltaX || event.deltaY) / this.width) * span;
        onView({ start: this.view.start + shift, end: this.view.end + shift });
      } else onView(this.zoomed(Math.exp(event.deltaY * 0.002), this.timeAt(event.offsetX)));
    }, { passive: false });
  }

  zoomed(factor, around = this.time) {
    const share = (around - this.view.start) / (this.view.end - this.view.start);
    const span = Math.max(8, (this.view.end - this.view.start) * factor);
    return { start: around - share * span, end: around + (1 - share) * span };
  }
}

export function label(message) {
  if (message.error !== "NONE") return `${message.type === "znodes" ? "refused" : message.type}: ${message.error}`;
  if (message.type === "znodes") {
    const { operations, operation_count: count } = message.record;
    const main = operations.find((operation) => operation.operation !== "check") || operations[0];
    return `${main.operation} ${main.path.split("/").slice(-2).join("/")}${count > 2 ? ` +${count - 2}` : ""}`;
  }
  if (message.type === "tool") return message.record.text;
  if (message.type === "AlterPartition") {
    const asked = message.proposal ?? message.proposals?.[0];
    return asked ? `AlterPartition ${asked.topic}-${asked.partition} ISR ${asked.isr.join(",")}` : "AlterPartition";
  }
  const attempt = message.attempt > 1 ? ` attempt ${message.attempt}` : "";
  return `${message.type}${message.count ? ` ×${message.count}` : ""}${attempt}`;
}

const meets = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];

function distanceTo(x, y, { x0, y0, x1, y1 }) {
  const length = (x1 - x0) ** 2 + (y1 - y0) ** 2;
  const share = length ? Math.max(0, Math.min(1, ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / length)) : 0;
  return Math.hypot(x - x0 - share * (x1 - x0), y - y0 - share * (y1 - y0));
}
