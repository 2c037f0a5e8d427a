// The Pipelines tab: each pipeline of this machine with its queries, as `klamm pipeline run` publishes them.

import { get } from "./api.js";
import { fill, h } from "./dom.js";
import { age, badge, bytes, count, hint, numbers, problems, refill, table, visible } from "./parts.js";
import { Past } from "./sparkline.js";

const QUIET = new Set(["stopped", "finished"]);
const GOOD = new Set(["running", "starting"]);

export class Pipelines {
  constructor(root) {
    this.root = root;
    this.past = new Past();
    this.seen = new Map();
  }

  state() {
    return {};
  }

  open() {
    this.body = h("div");
    fill(this.root, h("div", { class: "bar" }, h("h1", {}, "Pipelines")), this.body);
    return this.refresh();
  }

  close() {}

  async refresh() {
    const found = await get("api/cluster/pipelines");
    if (found.problem) {
      refill(this.body, problems([found.problem]));
      return;
    }
    refill(this.body, found.pipelines.length ? found.pipelines.map((it) => this._pipeline(it, found.now_ms))
      : hint("No pipeline has run on this machine. `klamm pipeline run FILE` starts one; --pipelines DIR names another state directory."));
  }

  _pipeline(it, now) {
    const queries = Object.entries(it.queries ?? {});
    return h("section", { class: "card" },
      h("div", { class: "row" }, h("h3", {}, visible(String(it.name))), it.alive ? badge(`process ${it.pid}`, "good") : badge("not running", "quiet"), h("span", { class: "grow" }),
        h("span", { class: "muted" }, it.alive && it.started_ms ? `for ${age(now - it.started_ms)}` : "")),
      h("p", { class: "facts" }, visible(`${it.file ?? ""} · checkpoint ${it.checkpoint}`)),
      table(["query", "state", "#batch", "#rows/s in", "#rows/s", "", "#batch time", "", "#lag", "", "#state rows", "#state", "watermark", "#restarts"], queries.map(([name, query]) => this._query(it, name, query))),
      queries.filter(([, query]) => query.failure).map(([name, query]) => h("p", { class: "problem" }, h("b", {}, visible(name)), ": ", visible(String(query.failure)))));
  }

  _query(it, name, query) {
    const key = `${it.name}/${it.checkpoint}/${name}`;
    const state = !it.alive && !QUIET.has(query.state) && query.state !== "failed" ? "died" : query.state;
    const at = `${query.batch}/${query.batch_at}`;
    if (this.seen.get(key) !== at) {
      // one value per batch, however often the page asks
      this.seen.set(key, at);
      for (const figure of ["rows_per_second", "batch_ms", "lag"]) this.past.add(`${key}/${figure}`, query[figure]);
    }
    const line = (figure, title) => h("td", {}, this.past.line(`${key}/${figure}`, title));
    return h("tr", {}, h("td", {}, h("b", {}, visible(name))), h("td", {}, badge(state, GOOD.has(state) ? "good" : QUIET.has(state) ? "quiet" : "bad")),
      numbers([count(query.batch), count(query.input_rows_per_second), count(query.rows_per_second)]), line("rows_per_second", "rows per second"),
      numbers([query.batch_ms === undefined ? null : age(query.batch_ms)]), line("batch_ms", "batch time"), numbers([count(query.lag)]), line("lag", "lag"),
      numbers([query.state_rows ? count(query.state_rows) : null, query.state_bytes ? bytes(query.state_bytes) : null]),
      h("td", { class: "muted" }, query.watermark ?? "–"), numbers([count(query.restarts)]));
  }
}
