// The fault drill: buttons beside each lane that break the cluster for real, and what was done so far.
// Only the process that started the cluster offers it.

import { get, post } from "./api.js";
import { fill, h } from "./dom.js";
import { moment, visible } from "./parts.js";

const EVERY_MS = 1_000;
const SHOWN = 12;
const ENDS = new Set(["start", "resume", "heal", "fast"]);
const BUTTONS = {
  start: ["start", "Start it again"],
  resume: ["resume", "Let the process continue"],
  heal: ["heal", "Connect it again; held bytes arrive late"],
  fast: ["disk ok", "End the delay of its disk"],
  kill: ["kill", "End the process at once, as if the machine had lost power"],
  stop: ["stop", "Stop it with a controlled shutdown"],
  pause: ["pause", "Stop the process in its tracks; its session ends after the timeout"],
  cut: ["cut", "Hold its connections with clients, brokers and ZooKeeper"],
  expire: ["expire", "End its ZooKeeper session"],
  slow: ["disk", "Slow disk: every access to its log files takes 50 ms longer"],
};

export class Drill {
  constructor(viewer, onRecords) {
    this.viewer = viewer;
    this.onRecords = onRecords;
    this.places = new Map();
    this.seen = 0;
    this.state = { brokers: [], actions: [], zookeeper: "running" };
    this.section = h("section", { class: "drill", "aria-label": "Fault drill" });
    fill(viewer.side, this.section);
    this._poll();
  }

  // The element beside a lane. The viewer makes it once, the drill keeps its contents up to date.
  gutter(lane) {
    const place = h("div", { class: "faults" });
    this.places.set(lane.id, place);
    this._buttons(lane.id);
    return place;
  }

  async _poll() {
    this._show(await get("api/drill"));
    setTimeout(() => this._poll(), EVERY_MS);
  }

  async perform(action, broker) {
    document.activeElement?.blur(); // so that keys act on the chart
    this.state = { ...this.state, running: `${broker === null ? "ZooKeeper" : `broker ${broker}`}: ${action}` };
    this.problem = null;
    this._draw();
    const found = await post("api/drill", { action, broker });
    this.problem = found.problem ?? null;
    this._show(found.problem ? await get("api/drill") : found);
  }

  _show(found) {
    if (!found.actions) return;
    this.state = found;
    const fresh = found.actions.filter((it) => it.number > this.seen && !it.problem);
    if (found.actions.length) this.seen = Math.max(this.seen, found.actions.at(-1).number);
    if (fresh.length) this.onRecords(fresh.map((it) => ({ ...it, name: ENDS.has(it.name) || (it.place === "zk" && it.name === "restart") ? "restart" : it.name })));
    document.body.dataset.drill = String(this.seen);
    this._draw();
  }

  _draw() {
    for (const id of this.places.keys()) this._buttons(id);
    const { actions, running } = this.state;
    fill(this.section, h("div", { class: "row" }, h("h2", {}, "Fault drill"), running ? h("span", { class: "busy", role: "status" }, `${running}…`) : null),
      this.problem ? h("p", { class: "problem" }, visible(this.problem)) : null,
      actions.length ? h("ol", {}, actions.slice(-SHOWN).toReversed().map((it) => h("li", { class: it.problem ? "bad" : ENDS.has(it.name) ? "good" : "" },
        h("span", { class: "when" }, moment(it.at_ms).slice(11, 19)), `${it.place === "zk" ? "ZooKeeper" : `broker ${it.place}`}: ${visible(it.problem ?? it.text)}`)))
        : h("p", { class: "hint" }, "Break something: the buttons beside each lane act on the real processes. The lanes show what follows."));
  }

  _buttons(id) {
    const place = this.places.get(id);
    if (!place) return;
    // Only news: a button that is replaced loses the focus.
    const shape = JSON.stringify([id === "zk" ? this.state.zookeeper : this.state.brokers.find((it) => it.id === id), Boolean(this.state.running)]);
    if (place.dataset.shape === shape) return;
    place.dataset.shape = shape;
    if (id === "zk") {
      const isUp = this.state.zookeeper === "running";
      fill(place, isUp ? [this._button("restart", null, "restart", "Restart ZooKeeper; sessions continue"), this._button("stop", null, "stop", "Stop ZooKeeper")] : this._button("start", null, "start", "Start ZooKeeper"),
        isUp ? null : h("b", { class: "bad" }, "stopped"));
      return;
    }
    const broker = this.state.brokers.find((it) => it.id === id);
    if (!broker) {
      fill(place);
      return;
    }
    const offered = broker.state === "stopped" ? ["start"] : broker.state === "paused" ? ["resume", "kill", "expire"] : ["kill", "stop", "pause", broker.is_cut ? "heal" : "cut", "expire", broker.is_slow ? "fast" : "slow"];
    const marks = [broker.state !== "running" ? broker.state : null, broker.is_cut ? "cut off" : null, broker.is_slow ? "slow disk" : null].filter(Boolean);
    fill(place, marks.length ? h("b", { class: "bad" }, marks.join(", ")) : null, offered.map((name) => this._button(name, id, ...BUTTONS[name])));
  }

  _button(name, broker, text, title) {
    return h("button", { title, disabled: Boolean(this.state.running), "data-fault": `${name}-${broker ?? "zk"}`, "data-key": `${name}-${broker ?? "zk"}`, class: ENDS.has(name) ? "good" : null, on: { click: () => this.perform(name, broker) } }, text);
  }
}
