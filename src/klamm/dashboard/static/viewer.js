// The viewer: chart, scrubber, panels and keyboard around one run. A page gives it records and keeps its address.

import { Chart } from "./chart.js";
import { fill, h, milliseconds } from "./dom.js";
import { Overview } from "./overview.js";
import { showSelection, showState, titleOf } from "./panels.js";
import { COLOURS, TITLES } from "./paint.js";
import { refill } from "./parts.js";
import { lowerBound, upperBound } from "./series.js";
import { chromeTrace } from "./trace.js";

const MAX_OFFERED = 3_000;
const RATES = [10, 25, 50, 100, 250, 1_000, 10_000, 60_000];
const BY_NUMBER = new Intl.Collator("en", { numeric: true }).compare; // orders-2 before orders-10

const decisionKey = (change) => `${change.topic}-${change.partition}/${change.leader_epoch}/${change.partition_epoch}/${change.at_ms}`;

export class Viewer {
  constructor(root, { clock, gutter = () => null, onChange = () => {} }) {
    this.clock = clock;
    this.gutter = gutter;
    this.onChange = onChange;
    this.run = null;
    this.partition = "";
    this.isChosen = false; // whether someone has chosen the partition
    this.isPlaying = false;
    this.rate = 100;
    this.bounds = { start: 0, end: 1000 };
    this._build(root);
    window.klammViewer = this; // for the browser's console
    this._keys();
    new ResizeObserver(() => this.chart.request()).observe(this.canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.retheme());
  }

  _build(root) {
    this.canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": "Lanes of ZooKeeper, the controller and each broker over time" });
    this.labels = h("div", { class: "gutter" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.scrubber = h("canvas", { class: "overview", tabindex: "0", role: "slider", "aria-label": "Time" });
    this.state = h("div", { class: "state" });
    this.selection = h("div", { class: "selection", "aria-live": "polite" });
    this.side = h("div", { class: "extra" });
    this.picker = h("select", { "aria-label": "Partition", on: { change: () => this.choose(this.picker.value) } });
    this.playButton = h("button", { class: "play", title: "Play or pause (Space)", on: { click: () => this.toggle() } }, "▶ Play");
    this.rateButton = h("select", { "aria-label": "Speed", title: "Milliseconds of the run per second", on: { change: () => (this.rate = Number(this.rateButton.value)) } },
      RATES.map((rate) => h("option", { value: String(rate), selected: rate === this.rate }, rate > 1_000 ? `${rate / 1000} s/s` : `${rate} ms/s`)));
    this.now = h("output", { class: "now" });
    const legend = h("div", { class: "legend" }, Object.keys(TITLES).map((type) => h("span", {}, h("i", { class: `swatch ${COLOURS[type]}` }), TITLES[type])),
      h("span", {}, h("i", { class: "swatch refused" }), "refused"),
      h("span", {}, h("i", { class: "swatch decision" }), "decision"),
      h("span", {}, h("i", { class: "swatch size" }), "queue"),
      h("span", { title: "A request that was merged with one that waits" }, h("i", { class: "swatch merged" }), "merged"));
    fill(root,
      h("div", { class: "stage" },
        h("div", { class: "chart" }, this.labels, h("div", { class: "plot" }, this.canvas, this.tip)),
        h("aside", {}, this.side,
          h("section", {}, h("div", { class: "row" }, h("h2", {}, "State"), this.picker), this.state),
          h("section", {}, h("h2", {}, "Selection"), this.selection))),
      h("footer", {},
        h("div", { class: "row transport" }, this.playButton,
          h("button", { title: "Previous record (←)", on: { click: () => this.step(-1) } }, "◂"),
          h("button", { title: "Next record (→)", on: { click: () => this.step(1) } }, "▸"),
          this.rateButton, this.now, legend, h("span", { class: "grow" }),
          h("button", { title: "Show everything (0)", on: { click: () => this.fit() } }, "Fit"),
          h("button", { title: "Zoom out (-)", on: { click: () => this.look(this.chart.zoomed(1.5)) } }, "−"),
          h("button", { title: "Zoom in (+)", on: { click: () => this.look(this.chart.zoomed(0.66)) } }, "+"),
          h("button", { title: "Download for Perfetto or chrome://tracing", on: { click: () => this.download() } }, "Trace")),
        this.scrubber));
    this.chart = new Chart(this.canvas, { clock: this.clock, onSelect: (hit) => this.select(hit), onHover: (hit, event) => this._hover(hit, event), onView: (view) => this.look(view) });
    this.overview = new Overview(this.scrubber, (view) => this.look(view));
    showSelection(this.selection, null, null, this);
  }

  // --- run and time

  setRun(run, { start = 0, end = run.end, keepView = false } = {}) {
    this.run = run;
    run.zero = start;
    this.bounds = { start, end: Math.max(end, start + 10) };
    this._pick(run);
    this.chart.partition = this.partition;
    this.chart.setRun(run);
    this.overview.setRun(run, this.bounds.start, this.bounds.end);
    this._gutter();
    if (!keepView) {
      this.chart.view = { ...this.bounds };
      this._select(null);
    }
    this._draw();
  }

  _pick(run) {
    // The menu of partitions, built again only when there are others.
    if (this._offered === run && this._offeredCount === run.partitions.size) return;
    Object.assign(this, { _offered: run, _offeredCount: run.partitions.size });
    const names = [...run.partitions].sort(BY_NUMBER);
    const isOwn = this.isChosen || !this.partition.startsWith("__"); // an internal topic is shown until there is another one
    if (!run.partitions.has(this.partition) || !isOwn) this.partition = names.find((name) => !name.startsWith("__")) || names[0] || "";
    const shown = names.slice(0, MAX_OFFERED);
    if (this.partition && !shown.includes(this.partition)) shown.unshift(this.partition);
    fill(this.picker, shown.map((name) => h("option", { value: name, selected: name === this.partition }, name)),
      names.length > shown.length ? h("option", { disabled: true }, `${names.length - shown.length} more: open them from Topics`) : null);
  }

  _gutter() {
    const { lanes, queues, height } = this.chart.layout;
    const shape = `${height}:${[...lanes.keys()].join()}`;
    if (shape === this._shape) return;
    this._shape = shape;
    this.labels.style.height = `${height}px`;
    refill(this.labels,
      [...lanes.values()].map((lane) => h("div", { class: `lane ${typeof lane.id === "number" ? "broker" : lane.id}`, style: { top: `${lane.top}px`, height: `${lane.height}px` } },
        h("b", {}, lane.title), this.gutter(lane))),
      queues.map((queue) => h("div", { class: "queue", style: { top: `${queue.top}px`, height: `${queue.height}px` } }, queue.title)));
  }

  choose(partition) {
    this.isChosen = true;
    this.partition = this.chart.partition = partition;
    this.picker.value = partition;
    this.picker.blur(); // so that keys act on the chart again
    this._draw();
    this.onChange();
  }

  look({ start, end, time, follow }) {
    cancelAnimationFrame(this._gliding); // the reader moves elsewhere
    if (start !== undefined) {
      const span = Math.min(end - start, (this.bounds.end - this.bounds.start) * 1.1);
      const least = this.bounds.start - span * 0.1;
      const from = Math.max(least, Math.min(start, this.bounds.end + span * 0.1 - span));
      this.chart.view = { start: from, end: from + span };
    }
    if (time !== undefined) {
      this.chart.time = Math.max(this.bounds.start, Math.min(this.bounds.end, time));
      if (follow) this._follow();
    }
    this._draw();
    this.onChange();
  }

  seek(time) {
    this.look({ time, follow: true });
  }

  get time() {
    return this.chart.time;
  }

  _follow() {
    const { view, time } = this.chart;
    const span = view.end - view.start;
    if (time > view.start + span * 0.85) this.chart.view = { start: time - span * 0.7, end: time + span * 0.3 };
    else if (time < view.start + span * 0.02) this.chart.view = { start: time - span * 0.2, end: time + span * 0.8 };
  }

  fit() {
    this.chart.view = { ...this.bounds };
    this.look({ time: this.time });
  }

  glide(target, window) {
    // Move time and window smoothly, for guided steps.
    this.pause();
    cancelAnimationFrame(this._gliding);
    const from = { time: this.time, ...this.chart.view };
    const to = { time: target, ...window };
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const length = still ? 1 : Math.min(1600, 500 + Math.abs(to.time - from.time) * 2);
    const began = performance.now();
    const move = (now) => {
      const share = Math.min(1, (now - began) / length);
      const eased = share < 0.5 ? 2 * share * share : 1 - (2 - 2 * share) ** 2 / 2;
      const mix = (key) => from[key] + (to[key] - from[key]) * eased;
      this.chart.view = { start: mix("start"), end: mix("end") };
      this.chart.time = mix("time");
      this._draw();
      if (share < 1) this._gliding = requestAnimationFrame(move);
      else this.onChange();
    };
    this._gliding = requestAnimationFrame(move);
  }

  toggle() {
    if (this.isPlaying) this.pause();
    else this.play();
  }

  play() {
    if (this.time >= this.bounds.end - 1) this.chart.time = this.bounds.start;
    this.isPlaying = true;
    this.playButton.textContent = "❚❚ Pause";
    this.onChange(); // a live page no longer follows the newest records
    let before = performance.now();
    const tick = (now) => {
      if (!this.isPlaying) return;
      this.chart.time = Math.min(this.bounds.end, this.time + ((now - before) / 1000) * this.rate);
      before = now;
      this._follow();
      this._draw();
      if (this.time >= this.bounds.end) this.pause();
      else requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  pause() {
    if (!this.isPlaying) return;
    this.isPlaying = false;
    this.playButton.textContent = "▶ Play";
    this.onChange();
  }

  step(direction) {
    this.pause();
    const { records } = this.run;
    const at = (record) => record.at_ms;
    let index = direction > 0 ? upperBound(records, this.time + 0.01, at) : lowerBound(records, this.time - 0.01, at) - 1;
    while (records[index]?.kind === "replica") index += direction;
    this.seek(records[index]?.at_ms ?? (direction > 0 ? this.bounds.end : this.bounds.start));
  }

  select(hit) {
    this._select(hit);
    this.onChange();
  }

  _select(hit) {
    this.chart.selected = hit;
    if (this.run) showSelection(this.selection, this.run, hit, this);
    this.chart.request();
  }

  get decision() {
    // The selected decision, for the address.
    const { type, item } = this.chart.selected ?? {};
    return type === "change" ? decisionKey(item) : "";
  }

  selectDecision(key) {
    const item = key ? this.run.changes.find((change) => decisionKey(change) === key) : null;
    if (item) this.select({ type: "change", item });
  }

  selectRecord(record) {
    // Select the item of the chart that a record became.
    const { run } = this;
    const change = run.changes.find((item) => item === record);
    const message = run.messages.find((item) => item.record === record || item.delivery === record || item.applied === record || item.roles?.includes(record));
    const event = record.kind.startsWith("event_") ? run.eventOf(record.broker_id, record.number, record.at_ms) : null;
    const fault = run.faults.find((item) => item === record);
    const hit = change ? { type: "change", item: change } : message ? { type: "message", item: message } : event ? { type: "event", item: event } : fault ? { type: "fault", item: fault } : null;
    this.select(hit);
  }

  explainLast() {
    const change = this.run.changes.findLast((item) => item.at_ms <= this.time && `${item.topic}-${item.partition}` === this.partition);
    if (change) this.select({ type: "change", item: change });
  }

  _hover(hit, event) {
    this.canvas.style.cursor = hit ? "pointer" : "default";
    this.tip.hidden = !hit;
    if (!hit) return;
    fill(this.tip, titleOf(hit), hit.type === "change" ? h("small", {}, "click for the chain of causes") : null);
    const x = Math.min(event.offsetX + 14, this.canvas.clientWidth - this.tip.offsetWidth - 8);
    this.tip.style.transform = `translate(${Math.max(4, x)}px, ${event.offsetY + 16}px)`;
  }

  _draw() {
    if (!this.run) return;
    this.chart.request();
    this.overview.draw(this.chart.view, this.time);
    this.now.textContent = this.clock(this.time, 0.1);
    this.scrubber.setAttribute("aria-valuetext", milliseconds(this.time - this.bounds.start));
    const now = performance.now();
    clearTimeout(this._late);
    const show = () => {
      this._shown = performance.now();
      showState(this.state, this.run, this.time, this.partition);
    };
    if (now - (this._shown ?? 0) > 60) show();
    else this._late = setTimeout(show, 70);
  }

  retheme() {
    this.chart.retheme();
    this.overview.retheme();
    this._draw();
  }

  download() {
    const link = h("a", { href: URL.createObjectURL(new Blob([chromeTrace(this.run)], { type: "application/json" })), download: "klamm-trace.json" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  _keys() {
    const keys = {
      " ": () => this.toggle(),
      ArrowRight: (event) => (event.shiftKey ? this.seek(this.time + 50) : this.step(1)),
      ArrowLeft: (event) => (event.shiftKey ? this.seek(this.time - 50) : this.step(-1)),
      Home: () => this.seek(this.bounds.start),
      End: () => this.seek(this.bounds.end),
      "+": () => this.look(this.chart.zoomed(0.66)),
      "=": () => this.look(this.chart.zoomed(0.66)),
      "-": () => this.look(this.chart.zoomed(1.5)),
      0: () => this.fit(),
      w: () => this.explainLast(),
      Escape: () => this.select(null),
    };
    document.addEventListener("keydown", (event) => {
      const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey;
      const isButton = event.target.tagName === "BUTTON" && event.key === " ";
      const isShown = this.canvas.offsetParent !== null;
      if (isTyping || isButton || !isShown || !this.run || !keys[event.key]) return;
      event.preventDefault();
      keys[event.key](event);
    });
  }
}
