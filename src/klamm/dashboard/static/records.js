// The records of a topic: newest first, or from an offset or a time; a live tail; a search; one record in full.

import { get } from "./api.js";
import { fill, h } from "./dom.js";
import { badge, bytes, choice, count, field, hint, linkRow, moment, problems, refill, table, visible } from "./parts.js";

const STARTS = [["newest", "newest first"], ["earliest", "from the first"], ["offset", "from offset"], ["time", "from time"]];
const LIMITS = [25, 50, 100, 250, 500].map((it) => [it, `${it} records`]);
const TAIL_MS = 1_000;
const KEPT = 500; // records of a live tail

export class Records {
  constructor(onState) {
    this.onState = onState;
    this.root = h("div", { class: "records" });
    this.list = h("div");
    this.detail = h("div", { class: "detail" });
    this.known = "";
    this._reset("");
  }

  _reset(topic) {
    Object.assign(this, { topic, start: "newest", value: "", partition: "", search: "", limit: 50, isLive: false, page: null, shown: [], chosen: "", trail: [] });
  }

  state() {
    return { start: this.start === "newest" ? "" : this.start, value: this.value, part: this.partition, find: this.search, limit: this.limit === 50 ? "" : this.limit, live: this.isLive ? 1 : "", rec: this.chosen };
  }

  open(topic, fields) {
    this.stop();
    this._reset(topic);
    this.start = STARTS.some(([name]) => name === fields.start) ? fields.start : "newest";
    this.value = fields.value ?? "";
    this.partition = /^\d+$/.test(fields.part ?? "") ? fields.part : "";
    this.search = fields.find ?? "";
    this.limit = Number(fields.limit) || 50;
    this.chosen = /^\d+-\d+$/.test(fields.rec ?? "") ? fields.rec : "";
    fill(this.list);
    fill(this.detail);
    this._frame();
    this.read().then(() => fields.live === "1" && this.tail(true));
    if (this.chosen) this._show(this.chosen);
  }

  partitions(indexes) {
    const key = indexes.join();
    if (this.known === key || !this.picker) return;
    this.known = key;
    fill(this.picker, h("option", { value: "" }, "all partitions"), indexes.map((it) => h("option", { value: String(it), selected: String(it) === this.partition }, `partition ${it}`)));
  }

  _frame() {
    const set = (name) => (value) => {
      this[name] = value;
      this.trail = [];
      if (name === "start") this._frame();
      if (!(name === "start" && (value === "offset" || value === "time"))) this.read();
      this.onState();
    };
    this.known = "";
    this.picker = choice("Partition", [["", "all partitions"], ...(this.partition ? [[this.partition, `partition ${this.partition}`]] : [])], this.partition, set("partition"));
    this.liveButton = h("button", { "aria-pressed": String(this.isLive), title: "Show records as they arrive (t)", on: { click: () => this.tail(!this.isLive) } }, "Tail");
    this.more = h("span", { class: "row" });
    const isTime = this.start === "time";
    fill(this.root,
      h("div", { class: "bar tools" },
        choice("Where to start", STARTS, this.start, set("start")),
        this.start === "offset" ? field("Offset", this.value, set("value"), { type: "number", min: "0", on: { change: (event) => set("value")(event.target.value) } }) : null,
        isTime ? h("input", { type: "datetime-local", step: "1", "aria-label": "Time", value: localTime(Number(this.value)), on: { change: (event) => set("value")(String(new Date(event.target.value).getTime() || "")) } }) : null,
        this.picker,
        field("Search", this.search, set("search"), { type: "search", class: "search", title: "In keys, values and headers; Enter searches", on: { search: (event) => event.target.value !== this.search && set("search")(event.target.value) } }),
        choice("Records per page", LIMITS, this.limit, (value) => set("limit")(Number(value))),
        h("button", { title: "Read again (r)", on: { click: () => { this.trail = []; this.read(); } } }, "Read"),
        this.liveButton, h("span", { class: "grow" }), this.more),
      this.list, this.detail);
  }

  async read(cursor = null) {
    const { topic } = this;
    this.asked = (this.asked ?? 0) + 1;
    const asked = this.asked;
    const isOffset = this.start === "offset" || this.start === "time";
    const isForward = cursor && this.start !== "newest";
    const found = await get("api/cluster/records", {
      topic, start: isForward ? "next" : this.start, value: isOffset ? this.value : "", partition: this.partition, q: this.search, limit: this.limit,
      cursor: cursor ? JSON.stringify(cursor) : "",
    });
    if (topic !== this.topic || asked !== this.asked || this.isLive) return;
    this.page = found;
    this.shown = found.records ?? [];
    this._list();
  }

  // --- pages

  _list() {
    const { page } = this;
    if (page.problem) {
      refill(this.list, problems([page.problem]));
      return;
    }
    const isNewest = this.start === "newest";
    const cursor = isNewest ? page.older : page.next;
    const hasMore = Object.entries(cursor).some(([number, at]) => (isNewest ? at > page.bounds[number][0] : at < page.bounds[number][1]));
    fill(this.more,
      this.trail.length ? h("button", { title: "Back to the page before", on: { click: () => { this.trail.pop(); this.read(this.trail.at(-1) ?? null); } } }, "◂ Back") : null,
      hasMore && !this.isLive ? h("button", { title: isNewest ? "Older records" : "The next records", on: { click: () => { this.trail.push(cursor); this.read(cursor); } } }, isNewest ? "Older ▸" : "Next ▸") : null);
    refill(this.list, problems(page.problems),
      this.shown.length ? table(["#partition", "#offset", "time", "key", "value", "#size"], this.shown.map((it) => this._row(it)), { class: "list" })
        : hint(this.isLive ? "Waiting for records…" : this.search ? "No record has this text." : "There are no records here."),
      h("p", { class: "hint" }, this._note(page, hasMore)));
  }

  _note(page, hasMore) {
    const notes = [];
    if (this.search) notes.push(`${count(page.scanned)} records were searched${hasMore ? (this.start === "newest" ? "; Older searches on" : "; Next searches on") : ""}.`);
    if (!page.is_complete) notes.push("The page ends early, at its limit of bytes or time.");
    if (page.skipped) notes.push(`${count(page.skipped)} records arrived faster than the page shows them and are left out.`);
    if (this.shown.some((it) => it.is_transactional)) notes.push("Records of open and aborted transactions are included.");
    return notes.join(" ");
  }

  _row(it) {
    const key = `${it.partition}-${it.offset}`;
    return h("tr", { class: `link${key === this.chosen ? " chosen" : ""}`, tabindex: "0", "data-key": key, title: "Show all of it",
      on: { click: () => this.choose(key), keydown: (event) => this._keys(event, key) } },
      h("td", { class: "number" }, it.partition), h("td", { class: "number" }, it.offset), h("td", { class: "muted" }, moment(it.timestamp)),
      h("td", { class: "key" }, preview(it.key)), h("td", { class: "value" }, preview(it.value), it.header_count ? badge(`${it.header_count} ${it.header_count === 1 ? "header" : "headers"}`, "quiet") : null, it.is_transactional ? badge("transaction", "term") : null),
      h("td", { class: "number muted" }, bytes((it.key?.size ?? 0) + (it.value?.size ?? 0))));
  }

  _keys(event, key) {
    if (event.key === "Enter") this.choose(key);
    const row = event.key === "ArrowDown" ? event.currentTarget.nextElementSibling : event.key === "ArrowUp" ? event.currentTarget.previousElementSibling : null;
    if (row) {
      event.preventDefault();
      event.stopPropagation();
      row.focus();
      if (this.chosen) this.choose(row.dataset.key);
    }
  }

  // --- the tail

  tail(wanted) {
    this.isLive = wanted;
    this.liveButton?.setAttribute("aria-pressed", String(wanted));
    this.onState();
    clearTimeout(this._next);
    if (!wanted) {
      this.read();
      return;
    }
    this.cursor = null;
    this.trail = [];
    fill(this.more);
    this._follow();
  }

  async _follow() {
    const { topic } = this;
    const first = this.cursor === null;
    const found = await get("api/cluster/records", { topic, partition: this.partition, q: this.search, limit: this.limit,
      start: first ? "newest" : "next", skips: !first, cursor: first ? "" : JSON.stringify(this.cursor) });
    if (!this.isLive || topic !== this.topic) return;
    if (!found.problem) {
      // "next" of a page of the newest records is the end of each partition
      this.cursor = { ...(this.cursor ?? {}), ...found.next };
      this.shown = first ? found.records : [...found.records.toReversed(), ...this.shown].slice(0, KEPT);
    }
    this.page = { ...found, older: {} };
    if (first || found.problem || found.records.length || found.problems.length) this._list();
    this.root.dataset.live = "1";
    this._next = setTimeout(() => this._follow(), TAIL_MS);
  }

  stop() {
    this.isLive = false;
    this.asked = (this.asked ?? 0) + 1;
    clearTimeout(this._next);
    delete this.root.dataset.live;
  }

  // --- one record

  choose(key) {
    this.chosen = this.chosen === key ? "" : key;
    for (const row of this.list.querySelectorAll("tr.link")) row.classList.toggle("chosen", row.dataset.key === this.chosen);
    this.onState();
    if (this.chosen) this._show(key);
    else fill(this.detail);
  }

  async _show(key) {
    const [partition, offset] = key.split("-");
    const found = await get("api/cluster/record", { topic: this.topic, partition, offset });
    if (this.chosen !== key) return;
    fill(this.detail, found.problem ? problems([found.problem]) : this._record(found.records[0]));
  }

  _record(it) {
    const close = h("button", { title: "Close", "aria-label": "Close", on: { click: () => this.choose(this.chosen) } }, "×");
    return h("article", { class: "record" },
      h("div", { class: "row" }, h("h3", {}, `Partition ${it.partition}, offset ${it.offset}`), h("span", { class: "grow" }), h("span", { class: "muted" }, moment(it.timestamp)), close),
      it.producer_id !== null ? h("p", { class: "facts" }, `Producer ${it.producer_id}${it.is_transactional ? ", in a transaction" : ""}`) : null,
      part("Key", it.key), part("Value", it.value),
      it.headers.length ? [h("h2", {}, "Headers"), table(["name", "value"], it.headers.map(([name, value]) =>
        h("tr", {}, h("td", {}, h("b", {}, visible(name))), h("td", { class: "wrap" }, preview(value)))))] : null,
      it.header_count > it.headers.length ? hint(`The first ${it.headers.length} of ${it.header_count} headers.`) : null);
  }
}

const preview = (part) => (part === null ? h("i", { class: "muted" }, "null") : part.encoding === "hex" ? h("code", { class: "muted" }, `0x${part.text}`) : visible(part.text) || h("i", { class: "muted" }, "empty"));

function part(title, it) {
  if (it === null) return [h("h2", {}, title), h("p", { class: "muted" }, "null")];
  const json = it.encoding === "text" && !it.is_cut ? pretty(it.text) : null;
  const body = it.encoding === "hex" ? dump(it.text) : json ?? visible(it.text);
  return [h("h2", {}, `${title} · ${bytes(it.size)}${it.encoding === "hex" ? " · not UTF-8" : json ? " · JSON" : ""}`), h("pre", { tabindex: "0" }, body),
    it.is_cut ? hint("Cut: the page shows the beginning. `klamm consume` prints all of it.") : null];
}

function pretty(text) {
  if (!/^\s*[[{]/.test(text)) return null;
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  return visible(indented(text));
}

// JSON in lines, token by token. Values that were parsed would not be those of the record: 9007199254740993 becomes ...992,
// 1.10 becomes 1.1, and the first of two equal names is lost.
function indented(text) {
  const parts = [];
  let depth = 0;
  const line = () => parts.push("\n", "  ".repeat(Math.min(depth, 40)));
  const tokens = text.match(/"(?:[^"\\]+|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g);
  tokens.forEach((token, index) => {
    const [isOpening, isClosing] = [token === "{" || token === "[", token === "}" || token === "]"];
    const isEmpty = isClosing && ["{", "["].includes(tokens[index - 1]);
    if (isClosing) depth -= 1;
    if (isClosing && !isEmpty) line();
    parts.push(token);
    if (token === ":") parts.push(" ");
    if (isOpening) depth += 1;
    if (token === "," || (isOpening && !["}", "]"].includes(tokens[index + 1]))) line();
  });
  return parts.join("");
}

function dump(hex) {
  const lines = [];
  for (let at = 0; at < hex.length && lines.length < 4_096; at += 32) {
    const pairs = hex.slice(at, at + 32).match(/../g) ?? [];
    const text = pairs.map((pair) => { const code = parseInt(pair, 16); return code >= 32 && code < 127 ? String.fromCharCode(code) : "."; }).join("");
    lines.push(`${(at / 2).toString(16).padStart(6, "0")}  ${pairs.join(" ").padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}

function localTime(ms) {
  if (!ms) return "";
  return new Date(ms - new Date(ms).getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}
