// The Topics tab: the list, and one topic with its records, partitions, settings and groups.

import { get } from "./api.js";
import { fill, h, list } from "./dom.js";
import { back, badge, bytes, cells, count, field, hint, linkRow, numbers, problems, refill, subtabs, table, tile, visible } from "./parts.js";
import { Produce } from "./produce.js";
import { Records } from "./records.js";

const VIEWS = { records: "Records", partitions: "Partitions", settings: "Settings", groups: "Groups" };

export class Topics {
  constructor(root, { onState, about, openGroup, openPartition }) {
    Object.assign(this, { root, onState, about, openGroup, openPartition });
    this.topic = "";
    this.show = "records";
    this.filter = "";
    this.internal = false;
    this.records = new Records(() => this.onState());
    this.produce = new Produce(() => this.refresh());
  }

  state() {
    if (!this.topic) return { q: this.filter, internal: this.internal ? 1 : "" };
    return { topic: this.topic, show: this.show, ...(this.show === "records" ? this.records.state() : {}) };
  }

  open(fields) {
    this.topic = fields.topic ?? "";
    this.show = fields.show in VIEWS || fields.show === "produce" ? fields.show : "records";
    if (this.topic) {
      this._frame();
      if (this.show === "records") this.records.open(this.topic, fields);
    } else {
      this.filter = fields.q ?? this.filter;
      this.internal = fields.internal ? fields.internal === "1" : this.internal;
      this._list();
    }
    return this.refresh();
  }

  go(topic, show = "records", fields = {}) {
    this.open({ ...fields, topic, show });
    this.onState(true);
  }

  close() {
    this.records.stop();
  }

  escape() {
    if (this.topic) this.go("");
  }

  async refresh() {
    const asked = `${this.topic}/${this.show}`;
    if (!this.topic) {
      const found = await get("api/cluster/topics", { q: this.filter, internal: this.internal });
      if (!this.topic) this._showList(found);
      return;
    }
    const [found, groups] = await Promise.all([
      get("api/cluster/topic", { name: this.topic }),
      this.show === "groups" ? get("api/cluster/topic/groups", { name: this.topic }) : null,
    ]);
    if (asked === `${this.topic}/${this.show}`) this._showTopic(found, groups);
  }

  // --- the list

  _list() {
    this.body = h("div");
    fill(this.root,
      h("div", { class: "bar" }, h("h1", {}, "Topics"), h("span", { class: "grow" }),
        field("Name", this.filter, (value) => this._filter({ filter: value }), { type: "search", on: { input: (event) => this._filter({ filter: event.target.value }) } }),
        h("label", {}, h("input", { type: "checkbox", checked: this.internal, on: { change: (event) => this._filter({ internal: event.target.checked }) } }), "internal")),
      this.body);
  }

  _filter(change) {
    Object.assign(this, change);
    this.onState();
    clearTimeout(this._soon);
    this._soon = setTimeout(() => this.refresh(), 150);
  }

  _showList(found) {
    if (found.problem) {
      this.listed = "";
      refill(this.body, problems([found.problem]));
      return;
    }
    const text = JSON.stringify(found);
    if (text === this.listed && this.body.childElementCount) return; // hundreds of rows are built again only for news
    this.listed = text;
    const more = found.count - found.topics.length;
    refill(this.body, problems(found.problems),
      found.topics.length ? table(["topic", "#partitions", "#replication", "#size", "#on all disks", "state"], found.topics.map((it) =>
        linkRow(it.name, "Show its records", () => this.go(it.name),
          h("td", {}, h("b", {}, visible(it.name)), it.is_internal ? badge("internal", "quiet") : null),
          numbers([count(it.partitions), it.replication, bytes(it.bytes), bytes(it.bytes_on_disks)]),
          h("td", {}, health(it)))))
        : hint(this.filter ? "No topic has this in its name." : "There is no topic yet. `klamm topic create orders` makes one."),
      more > 0 ? hint(`${count(more)} more topics: filter by name to see them.`) : null);
  }

  // --- one topic

  _frame() {
    const views = this.about.allows_changes ? { ...VIEWS, produce: "Produce" } : VIEWS;
    this.head = h("div", { class: "tiles small" });
    this.body = h("div");
    this.view = { records: this.records.root, produce: this.produce.root }[this.show] ?? this.body;
    if (this.show === "produce") this.produce.open(this.topic);
    if (this.show !== "records") this.records.stop();
    this.trouble = h("div");
    fill(this.root,
      h("div", { class: "bar" }, back("Topics", () => this.go("")), h("h1", {}, visible(this.topic)), h("span", { class: "grow" }),
        subtabs(views, this.show, (show) => this.go(this.topic, show))),
      this.head, this.trouble, this.view);
  }

  _showTopic(found, groups) {
    if (found.problem) {
      fill(this.head);
      refill(this.trouble, problems([found.problem]));
      return;
    }
    this.produce.partitions = found.partitions;
    this.records.partitions(found.shown.map((it) => it.index));
    refill(this.trouble, problems(found.problems));
    fill(this.head,
      tile("partitions", count(found.partitions), `replication ${found.replication}`),
      tile("records", count(found.records), "first to last offset"),
      tile("size", bytes(found.bytes), `${bytes(found.bytes_on_disks)} on all disks`),
      tile("offline", found.offline, "partitions", found.offline > 0),
      tile("under-replicated", found.under_replicated, "partitions", found.under_replicated > 0));
    if (this.show === "partitions") this._partitions(found);
    if (this.show === "settings") this._settings(found);
    if (this.show === "groups") this._groups(groups ?? { groups: [] });
  }

  _partitions(found) {
    refill(this.body, table(["#partition", "leader", "#epoch", "ISR", "replicas", "#first offset", "#end", "#records", "#size", "copies"], found.shown.map((it) => {
      const isShort = it.isr.length < it.replicas.length;
      const own = it.copies.find((copy) => copy.broker_id === it.leader && !copy.is_future);
      return linkRow(String(it.index), "Show its past in the control plane", () => this.openPartition(`${found.name}-${it.index}`),
        numbers([it.index]),
        h("td", {}, it.leader === null ? badge("none") : `broker ${it.leader}`),
        numbers([it.leader_epoch]),
        h("td", {}, isShort ? badge(list(it.isr)) : list(it.isr)),
        h("td", {}, list(it.replicas)),
        numbers([count(it.first), count(it.end), it.end === null ? null : count(it.end - it.first), bytes(own?.size_bytes)]),
        h("td", { class: "muted" }, it.copies.map((copy) => `${copy.broker_id}: ${bytes(copy.size_bytes)}${copy.is_future ? " (moving)" : copy.offset_lag > 0 ? ` (${count(copy.offset_lag)} behind)` : ""}`).join(", ")));
    })), found.partitions > found.shown.length ? hint(`The first ${found.shown.length} of ${count(found.partitions)} partitions.`) : null,
    h("p", { class: "hint" }, `Topic id ${found.topic_id}`));
  }

  _settings(found) {
    refill(this.body, table(["setting", "value", "from"], found.settings.map((it) =>
      h("tr", { class: it.source === "topic" ? "own" : null },
        h("td", {}, it.source === "topic" ? h("b", {}, it.name) : it.name),
        h("td", { class: "wrap" }, it.is_secret ? "(secret)" : visible(it.value ?? "–")),
        h("td", {}, it.source === "topic" ? badge("topic", "term") : it.source)))));
  }

  _groups(found) {
    refill(this.body, problems(found.problem ? [found.problem] : found.problems),
      found.groups?.length ? table(["group", "state", "#partitions", "#lag"], found.groups.map((it) =>
        linkRow(it.group, "Show the group", () => this.openGroup(it.group),
          h("td", {}, h("b", {}, visible(it.group))), cells([it.state]), numbers([count(it.partitions), count(it.lag)]))))
        : hint("No consumer group has committed offsets of this topic."));
  }
}

function health(it) {
  if (it.offline) return badge(`${it.offline} offline`);
  return it.under_replicated ? badge(`${it.under_replicated} under-replicated`) : h("span", { class: "good" }, "in sync");
}
