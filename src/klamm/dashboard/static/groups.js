// The Groups tab: the list, and one group with its members, their partitions, the lag, and a reset with a preview.

import { get, post } from "./api.js";
import { fill, h } from "./dom.js";
import { back, badge, cells, choice, count, field, hint, linkRow, numbers, problems, refill, table, tile, visible } from "./parts.js";
import { Past } from "./sparkline.js";

const TARGETS = [["earliest", "to the first record"], ["latest", "to the end"], ["offset", "to offset"], ["time", "to time"], ["shift", "by records"]];

export class Groups {
  constructor(root, { onState, about, openTopic }) {
    Object.assign(this, { root, onState, about, openTopic });
    this.group = "";
    this.filter = "";
    this.past = new Past();
  }

  state() {
    return this.group ? { group: this.group } : { q: this.filter };
  }

  open(fields) {
    this.group = fields.group ?? "";
    if (this.group) this._frame();
    else {
      this.filter = fields.q ?? this.filter;
      this._list();
    }
    return this.refresh();
  }

  go(group) {
    this.open({ group });
    this.onState(true);
  }

  close() {}

  escape() {
    if (this.group) this.go("");
  }

  async refresh() {
    const asked = this.group;
    const found = asked ? await get("api/cluster/group", { name: asked }) : await get("api/cluster/groups", { q: this.filter });
    if (asked !== this.group) return;
    if (asked) this._showGroup(found);
    else this._showList(found);
  }

  // --- the list

  _list() {
    this.body = h("div");
    const filter = (value) => {
      this.filter = value;
      this.onState();
      clearTimeout(this._soon);
      this._soon = setTimeout(() => this.refresh(), 150);
    };
    fill(this.root, h("div", { class: "bar" }, h("h1", {}, "Consumer groups"), h("span", { class: "grow" }),
      field("Name", this.filter, filter, { type: "search", on: { input: (event) => filter(event.target.value) } })), this.body);
  }

  _showList(found) {
    if (found.problem) {
      refill(this.body, problems([found.problem]));
      return;
    }
    for (const it of found.groups) this.past.add(it.group_id, it.lag);
    refill(this.body, problems(found.problems),
      found.groups.length ? table(["group", "state", "#members", "#topics", "#lag", "lag since the page is open", "coordinator"], found.groups.map((it) =>
        linkRow(it.group_id, "Show members and offsets", () => this.go(it.group_id),
          h("td", {}, h("b", {}, visible(it.group_id))), h("td", {}, stateBadge(it.state)),
          numbers([count(it.members), count(it.topics), count(it.lag)]), h("td", {}, this.past.line(it.group_id, "lag")), cells([`broker ${it.coordinator}`]))))
        : hint(this.filter ? "No group has this in its name." : "There is no consumer group."),
      found.count > found.groups.length ? hint(`${found.groups.length} of ${count(found.count)} groups: filter by name to see others.`) : null);
  }

  // --- one group

  _frame() {
    this.head = h("div", { class: "tiles small" });
    this.body = h("div");
    this.reset = new Reset(this.group, this.about.allows_changes, () => this.refresh());
    fill(this.root, h("div", { class: "bar" }, back("Groups", () => this.go("")), h("h1", {}, visible(this.group))), this.head, this.body, this.reset.root);
  }

  _showGroup(found) {
    if (found.problem) {
      refill(this.body, problems([found.problem]));
      return;
    }
    this.past.add(found.group, found.lag);
    this.reset.topics([...new Set(found.partitions.map((it) => it.topic))]);
    const most = Math.max(1, ...found.partitions.map((it) => it.lag ?? 0));
    fill(this.head,
      tile("state", found.state, found.assignor || found.protocol || "", found.state === "Dead"),
      tile("members", found.members.length, ""),
      tile("partitions", count(found.count), ""),
      tile("lag", count(found.lag), "records", false, this.past.line(found.group, "lag")));
    refill(this.body, problems(found.problems),
      h("h2", {}, "Members"),
      found.members.length ? table(["client", "member", "host", "instance", "#partitions"], found.members.map((it) =>
        h("tr", {}, h("td", {}, h("b", {}, visible(it.client))), h("td", { class: "muted wrap" }, visible(it.member)), cells([visible(it.host), it.instance === null ? null : visible(it.instance)]), numbers([it.assigned]))))
        : hint("The group has no members now."),
      h("h2", {}, "Partitions"),
      found.partitions.length ? table(["topic", "#partition", "#committed", "#end", "#lag", "", "assigned to"], found.partitions.map((it) =>
        linkRow(`${it.topic}-${it.partition}`, "Show the records at its offset", () => this.openTopic(it.topic, { start: "offset", value: String(it.offset ?? 0), part: String(it.partition) }),
          h("td", {}, h("b", {}, visible(it.topic))), numbers([it.partition, count(it.offset), count(it.end), count(it.lag)]),
          h("td", { class: "lag" }, it.lag ? h("i", { class: "bar-of", style: { width: `${(it.lag / most) * 100}%` } }) : null), cells([it.client === null ? null : visible(it.client)]))))
        : hint("The group has committed no offsets, and nothing is assigned."),
      found.count > found.partitions.length ? hint(`The first ${found.partitions.length} of ${count(found.count)} partitions.`) : null);
  }
}

const stateBadge = (state) => badge(state || "unknown", state === "Stable" ? "good" : state === "Dead" ? "bad" : state === "Empty" ? "quiet" : "term");

// A reset shows first what it would do; exactly that is applied.
class Reset {
  constructor(group, mayChange, onDone) {
    Object.assign(this, { group, mayChange, onDone, target: "earliest", value: "", topic: "", known: "" });
    this.root = h("section", { class: "reset" });
    this.preview = h("div", { "aria-live": "polite" });
    this.picker = choice("Topic", [["", "all its topics"]], "", (value) => this._set({ topic: value }));
    this._frame();
  }

  topics(names) {
    if (this.known === names.join()) return;
    this.known = names.join();
    fill(this.picker, h("option", { value: "" }, "all its topics"), names.map((it) => h("option", { value: it, selected: it === this.topic }, visible(it))));
  }

  _set(change) {
    Object.assign(this, change);
    fill(this.preview);
    if ("target" in change) this._frame();
  }

  _frame() {
    const set = (event) => this._set({ value: event.target.value });
    const input = { offset: { type: "number", min: "0" }, shift: { type: "number", title: "Negative numbers move back" }, time: { type: "datetime-local", step: "1" } }[this.target];
    fill(this.root, h("h2", {}, "Reset offsets"),
      h("div", { class: "bar tools" }, choice("New position", TARGETS, this.target, (value) => this._set({ target: value, value: "" })),
        input ? h("input", { "aria-label": "Value of the new position", ...input, value: this.value, on: { input: set } }) : null,
        this.picker, h("button", { on: { click: () => this._ask() } }, "Preview")),
      this.preview);
  }

  async _ask() {
    const value = this.target === "time" ? new Date(this.value).getTime() || "" : this.value;
    if ((this.target === "time" || this.target === "offset" || this.target === "shift") && value === "") {
      fill(this.preview, problems(["Enter the new position first."]));
      return;
    }
    const found = await get("api/cluster/group/reset", { name: this.group, topic: this.topic, target: this.target, value });
    if (found.problem) {
      fill(this.preview, problems([found.problem]));
      return;
    }
    const apply = h("button", { class: "primary", disabled: !this.mayChange || !found.can_apply, on: { click: () => this._apply(found) } }, "Apply");
    fill(this.preview, problems(found.problems),
      found.rows.length ? table(["topic", "#partition", "#now", "#new", "#change", "log"], found.rows.map((it) =>
        h("tr", {}, cells([visible(it.topic)]), numbers([it.partition, count(it.now)]), h("td", { class: "number" }, h("b", {}, count(it.new)), it.is_cut ? badge("cut to the log", "term") : null),
          numbers([it.now === null ? null : signed(it.new - it.now)]), h("td", { class: "muted" }, `${count(it.first)} to ${count(it.end)}`)))) : null,
      h("div", { class: "row" }, apply, this.mayChange ? null : hint("To apply it, start the viewer with --allow-changes, or use klamm group reset.")));
  }

  async _apply(preview) {
    const found = await post("api/cluster/group/reset", { group: this.group, rows: preview.rows.map(({ topic, partition, new: offset }) => ({ topic, partition, new: offset })) });
    fill(this.preview, found.problem ? problems([found.problem]) : h("p", { class: "good" }, `Committed ${count(found.count)} offsets.`));
    this.onDone();
  }
}

const signed = (value) => (value > 0 ? `+${count(value)}` : count(value));
