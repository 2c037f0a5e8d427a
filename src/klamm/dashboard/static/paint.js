// Small drawing helpers, and the colours of the current theme.

const NAMES = ["bg", "panel", "line", "text", "muted", "faint", "lair", "umr", "stop", "alter", "znodes", "watch", "refused", "leader",
  "follower", "accent", "event", "fault", "term", "queue"];

export function palette() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

export const COLOURS = { LeaderAndIsr: "lair", UpdateMetadata: "umr", StopReplica: "stop", AlterPartition: "alter", znodes: "znodes", watch: "watch", tool: "accent" };
export const TITLES = { LeaderAndIsr: "LeaderAndIsr", UpdateMetadata: "UpdateMetadata", StopReplica: "StopReplica", AlterPartition: "AlterPartition",
  znodes: "znode write", watch: "watch" };

export function arrow(ctx, x0, y0, x1, y1, { colour, width = 1.4, dash = [], head = 6, alpha = 1 }) {
  ctx.save();
  ctx.globalAlpha = alpha;
  ctx.strokeStyle = ctx.fillStyle = colour;
  ctx.lineWidth = width;
  ctx.setLineDash(dash);
  ctx.beginPath();
  ctx.moveTo(x0, y0);
  ctx.lineTo(x1, y1);
  ctx.stroke();
  if (head) {
    const angle = Math.atan2(y1 - y0, x1 - x0);
    ctx.setLineDash([]);
    ctx.beginPath();
    ctx.moveTo(x1, y1);
    ctx.lineTo(x1 - head * Math.cos(angle - 0.42), y1 - head * Math.sin(angle - 0.42));
    ctx.lineTo(x1 - head * Math.cos(angle + 0.42), y1 - head * Math.sin(angle + 0.42));
    ctx.closePath();
    ctx.fill();
  }
  ctx.restore();
}

export function cross(ctx, x, y, colour, size = 4.5) {
  ctx.save();
  ctx.strokeStyle = colour;
  ctx.lineWidth = 2.2;
  ctx.beginPath();
  ctx.moveTo(x - size, y - size);
  ctx.lineTo(x + size, y + size);
  ctx.moveTo(x + size, y - size);
  ctx.lineTo(x - size, y + size);
  ctx.stroke();
  ctx.restore();
}

export function box(ctx, x, y, width, height, radius = 4) {
  ctx.beginPath();
  ctx.roundRect(x, y, Math.max(0.5, width), height, Math.min(radius, Math.max(0.25, width / 2)));
}

export function clipped(ctx, text, x, y, width) {
  // Text that is cut to a width; nothing if not even a few letters fit.
  if (width < 14) return;
  let shown = text;
  if (ctx.measureText(shown).width > width) {
    const letters = Math.floor((shown.length * width) / ctx.measureText(shown).width) - 1;
    if (letters < 2) return;
    shown = `${shown.slice(0, letters)}…`;
  }
  ctx.fillText(shown, x, y);
}

export function ticks(from, to, width) {
  const rough = ((to - from) / Math.max(1, width)) * 90;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return { found, step };
}
