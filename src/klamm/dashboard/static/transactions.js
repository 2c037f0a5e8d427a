// The Transactions tab: open transactions and their age, transactions that hang, and the other transactional ids.

import { get } from "./api.js";
import { fill, h } from "./dom.js";
import { age, badge, cells, choice, count, hint, linkRow, numbers, problems, refill, table, tile, visible } from "./parts.js";

const MINUTES = [[0, "any age"], [1, "1 minute"], [5, "5 minutes"], [15, "15 minutes"], [60, "1 hour"]];

export class Transactions {
  constructor(root, { onState, openTopic }) {
    Object.assign(this, { root, onState, openTopic });
    this.minutes = 15;
  }

  state() {
    return { age: this.minutes === 15 ? "" : this.minutes };
  }

  open(fields) {
    if (fields.age !== undefined && /^\d+$/.test(fields.age)) this.minutes = Number(fields.age);
    this.tiles = h("div", { class: "tiles small" });
    this.body = h("div");
    this.hanging = h("div", { "aria-live": "polite" });
    const set = (value) => {
      this.minutes = Number(value);
      this.onState();
      this._look();
    };
    fill(this.root, h("div", { class: "bar" }, h("h1", {}, "Transactions")), this.tiles,
      h("h2", {}, "Hanging"), h("div", { class: "bar tools" }, h("span", { class: "muted" }, "open in a log, without a record for"), choice("Without a record for", MINUTES, this.minutes, set),
        h("button", { on: { click: () => this._look() } }, "Look again")),
      this.hanging, this.body);
    this._look();
    return this.refresh();
  }

  close() {}

  async refresh() {
    const found = await get("api/cluster/transactions");
    if (found.problem) {
      refill(this.body, problems([found.problem]));
      return;
    }
    const open = found.transactions.filter((it) => it.is_open);
    const others = found.transactions.filter((it) => !it.is_open);
    const oldest = Math.max(0, ...open.map((it) => (it.start_time_ms ? found.now_ms - it.start_time_ms : 0)));
    fill(this.tiles, tile("open", open.length, "transactions"), tile("oldest", open.length ? age(oldest) : "–", "open for"), tile("transactional ids", count(found.count), "known to coordinators"));
    refill(this.body, problems(found.problems),
      h("h2", {}, "Open"),
      open.length ? table(["transactional id", "state", "#open for", "of its timeout", "#producer", "#epoch", "coordinator", "partitions"], open.map((it) => this._open(it, found.now_ms)))
        : hint("No transaction is open."),
      h("h2", {}, "Other transactional ids"),
      others.length ? table(["transactional id", "state", "#producer", "coordinator"], others.map((it) =>
        h("tr", {}, h("td", {}, visible(it.transactional_id)), cells([it.state]), numbers([it.producer_id]), cells([`broker ${it.coordinator}`]))))
        : hint("There are none."),
      found.count > found.transactions.length ? hint(`${found.transactions.length} of ${count(found.count)} are shown.`) : null);
  }

  _open(it, now) {
    const open = it.start_time_ms ? now - it.start_time_ms : null;
    const share = open !== null && it.timeout_ms ? Math.min(1, open / it.timeout_ms) : 0;
    const more = (it.partition_count ?? 0) - (it.partitions?.length ?? 0);
    return h("tr", {}, h("td", {}, h("b", {}, visible(it.transactional_id))), h("td", {}, badge(it.state, "term")), numbers([age(open)]),
      h("td", { class: "lag" }, h("i", { class: `bar-of${share > 0.8 ? " bad" : ""}`, title: `timeout ${age(it.timeout_ms)}`, style: { width: `${share * 100}%` } })),
      numbers([it.producer_id, it.producer_epoch]), cells([`broker ${it.coordinator}`]),
      h("td", { class: "wrap" }, (it.partitions ?? []).map(visible).join(", "), more > 0 ? ` and ${more} more` : ""));
  }

  async _look() {
    this.asked = (this.asked ?? 0) + 1;
    const asked = this.asked;
    const found = await get("api/cluster/transactions/hanging", { minutes: String(this.minutes) });
    if (asked !== this.asked) return;
    if (found.problem) {
      fill(this.hanging, problems([found.problem]));
      return;
    }
    fill(this.hanging, problems(found.problems),
      found.hanging.length ? [table(["topic", "#partition", "#first offset", "#producer", "#epoch", "#last record"], found.hanging.map((it) =>
        linkRow(`${it.topic}-${it.partition}-${it.start_offset}`, "Show the records", () => this.openTopic(it.topic, { start: "offset", value: String(it.start_offset), part: String(it.partition) }),
          h("td", {}, h("b", {}, visible(it.topic)), badge("hangs")), numbers([it.partition, count(it.start_offset), it.producer_id, it.producer_epoch, `${age(found.now_ms - it.last_timestamp_ms)} ago`])))),
      hint("Consumers with read_committed stop before its first offset. `klamm txn abort --topic T --partition P --start-offset N` ends it.")]
        : h("p", { class: "good" }, `None hangs. ${found.open} ${found.open === 1 ? "is" : "are"} open in the logs, ${found.suspects} without a record for so long.`));
    this.root.dataset.looked = String(asked);
  }
}
