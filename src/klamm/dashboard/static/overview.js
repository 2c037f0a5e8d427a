// The scrubber: the whole recorded past in one strip, with the visible window and the current time.

import { COLOURS, palette } from "./paint.js";

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
    this._base = null;
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
    const colours = palette();
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
    const shapes = [];
    const cells = Math.max(20, Math.floor(width / 4));
    const cell = (at) => Math.max(0, Math.min(cells - 1, Math.floor(((at - this.start) / (this.end - this.start)) * cells)));
    const counts = new Map();
    for (const message of this.run.messages) {
      const key = message.error !== "NONE" ? "refused" : COLOURS[message.type] || "muted";
      if (!counts.has(key)) counts.set(key, new Float32Array(cells));
      counts.get(key)[cell(message.start)] += 1;
    }
    const total = new Float32Array(cells);
    for (const values of counts.values()) values.forEach((value, index) => (total[index] += value));
    const most = Math.max(4, ...total);
    const base = new Float32Array(cells);
    for (const [colour, values] of counts) {
      values.forEach((value, index) => {
        if (!value) return;
        const size = (value / most) * (height - 12);
        shapes.push([(index * width) / cells, height - 2 - base[index] - size, width / cells - 1, size, colour, 0.8]);
        base[index] += size;
      });
    }
    for (const fault of this.run.faults) {
      shapes.push([(cell(fault.at_ms) * width) / cells, 2, 3, 6, fault.name === "restart" ? "leader" : "fault", 1]);
    }
    return shapes;
  }
}
