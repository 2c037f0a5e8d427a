// The scrubber: the whole recorded past in one strip, with the visible window and the current time.

import { COLOURS, palette } from "./paint.js";

const CELL = 3; // pixels of a bar, at least

export class Overview {
  constructor(canvas, onView) {
    this.canvas = canvas;
    this.ctx = canvas.getContext("2d");
    this.run = null;
    let isDown = false;
    const seek = (event) => onView({ time: this.timeAt(event.offsetX), follow: true });
    canvas.addEventListener("pointerdown", (event) => {
      isDown = true;
      canvas.setPointerCapture(event.pointerId);
      seek(event);
    });
    canvas.addEventListener("pointermove", (event) => isDown && seek(event));
    canvas.addEventListener("pointerup", () => (isDown = false));
  }

  setRun(run, start, end) {
    Object.assign(this, { run, start, end, _base: null });
  }

  timeAt(x) {
    return this.start + (Math.max(0, Math.min(this.canvas.clientWidth, x)) / this.canvas.clientWidth) * (this.end - this.start);
  }

  retheme() {
    this._colours = null;
  }

  draw(view, time) {
    if (!this.run) return;
    const ratio = window.devicePixelRatio || 1;
    const width = this.canvas.clientWidth;
    const height = this.canvas.clientHeight;
    if (this.canvas.width !== width * ratio || this.canvas.height !== height * ratio) {
      this.canvas.width = width * ratio;
      this.canvas.height = height * ratio;
      this._base = null;
    }
    const ctx = this.ctx;
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    this._base ||= this._histogram(width, height);
    ctx.clearRect(0, 0, width, height);
    const colours = (this._colours ??= palette());
    const x = (at) => ((at - this.start) / (this.end - this.start)) * width;
    for (const [left, top, w, h, colour, alpha] of this._base) {
      ctx.globalAlpha = alpha;
      ctx.fillStyle = colours[colour];
      ctx.fillRect(left, top, w, h);
    }
    ctx.globalAlpha = 0.12;
    ctx.fillStyle = colours.accent;
    ctx.fillRect(x(view.start), 0, x(view.end) - x(view.start), height);
    ctx.globalAlpha = 1;
    ctx.strokeStyle = colours.accent;
    ctx.lineWidth = 1;
    ctx.strokeRect(x(view.start) + 0.5, 0.5, x(view.end) - x(view.start) - 1, height - 1);
    ctx.fillStyle = colours.accent;
    ctx.fillRect(x(time) - 1, 0, 2, height);
  }

  _histogram(width, height) {
    const { run, start, end } = this;
    const shapes = [];
    const x = (at) => ((at - start) / (end - start)) * width;
    const { found, width: span } = run.messageLevels.between(run.messages, start, end, ((end - start) / width) * CELL);
    const cells = new Map(); // number of a stretch -> colour -> messages
    for (const { index, way, accepted, refused } of found) {
      if (!cells.has(index)) cells.set(index, new Map());
      const counts = cells.get(index);
      const colour = COLOURS[way.slice(0, way.indexOf(":"))] || "muted";
      if (accepted) counts.set(colour, (counts.get(colour) || 0) + accepted);
      if (refused) counts.set("refused", (counts.get("refused") || 0) + refused);
    }
    let most = 4;
    for (const counts of cells.values()) most = Math.max(most, [...counts.values()].reduce((sum, count) => sum + count, 0));
    const cell = (span / (end - start)) * width;
    for (const [index, counts] of cells) {
      let base = height - 2;
      for (const [colour, count] of counts) {
        const size = (count / most) * (height - 12);
        base -= size;
        shapes.push([x(index * span), base, cell - 1, size, colour, 0.8]);
      }
    }
    for (const fault of run.faults) shapes.push([x(fault.at_ms), 2, 3, 6, fault.name === "restart" ? "leader" : "fault", 1]);
    return shapes;
  }
}
