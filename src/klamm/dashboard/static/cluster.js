// The Cluster tab: brokers, and the partitions that need attention first.

import { fill, h, list } from "./dom.js";
import { badge, bytes, cells, count, hint, linkRow, numbers, percent, refill, table, tile, whole } from "./parts.js";

const COLUMNS = ["broker", "state", "listeners", "rack", "#broker epoch", "#leaders", "#in/s", "#out/s", "#records/s", "#CPU", "#memory", "disk"];
const KNOWLEDGE = ["broker", "controller it knows", "#controller epoch", "#partitions behind", "#unacknowledged requests", "#oldest request"];
const FULL = 0.9;

export function showCluster(element, status, run, onPartition) {
  if (status.problem) {
    fill(element, h("p", { class: "bad" }, status.problem));
    return;
  }
  const leaders = leaderCounts(run);
  const sum = (field) => Object.values(status.activity).reduce((total, it) => total + (it[field] ?? 0), 0);
  refill(element,
    h("div", { class: "tiles" },
      tile("controller", status.controller_problem ? status.controller_problem : `broker ${status.controller_id}`, status.controller_epoch !== null ? `epoch ${status.controller_epoch}` : "", Boolean(status.controller_problem)),
      tile("ZooKeeper", status.zookeeper_answers === null ? "–" : status.zookeeper_answers ? "answers" : "does not answer", "", status.zookeeper_answers === false),
      tile("brokers", `${status.brokers.filter((it) => it.answers).length} of ${status.brokers.length + status.missing_brokers.length}`, "answer", status.missing_brokers.length > 0),
      tile("partitions", status.partitions, `${status.topics} topics`),
      tile("bytes in", bytes(sum("bytes_in")), "per second"),
      tile("bytes out", bytes(sum("bytes_out")), "per second"),
      tile("offline", status.offline_partitions, "partitions", status.offline_partitions > 0),
      tile("under-replicated", status.under_replicated_partitions, "partitions", status.under_replicated_partitions > 0)),
    status.problems.map((problem) => h("p", { class: "problem" }, problem)),
    h("h2", {}, "Brokers"),
    table(COLUMNS,
      [...status.brokers.map((it) => brokerRow(it, status, leaders, run)),
        ...status.missing_brokers.map((it) => h("tr", { class: "down" }, h("td", {}, h("b", {}, it.id)), h("td", {}, badge("missing")), h("td", { colspan: String(COLUMNS.length - 2) }, `${it.replicas} replicas`)))]),
    h("h2", {}, "Partitions that need attention"),
    status.unwell_partitions.length ? table(["partition", "state", "leader", "ISR", "replicas"], status.unwell_partitions.map((it) => partitionRow(it, onPartition)))
      : h("p", { class: "hint" }, "None: every partition has a leader and all its replicas in sync."),
    hidden(status.unwell_partitions.length, status.unwell_count),
    status.moving_partitions.length ? [h("h2", {}, "Partitions that are being moved"), table(["partition", "state", "leader", "ISR", "replicas"], status.moving_partitions.map((it) => partitionRow(it, onPartition))), hidden(status.moving_partitions.length, status.moving_count)] : null,
    h("h2", {}, "What each broker knows"),
    table(KNOWLEDGE, status.brokers.filter((it) => it.answers).map(knowledgeRow)));
}

const hidden = (shown, all) => (all > shown ? hint(`${count(all - shown)} more. \`klamm cluster status --json\` lists all of them.`) : null);

function leaderCounts(run) {
  const counts = new Map();
  for (const series of run.truth.values()) {
    const leader = series.last?.leader;
    if (leader >= 0) counts.set(leader, (counts.get(leader) || 0) + 1);
  }
  return counts;
}

function brokerRow(broker, status, leaders, run) {
  const isController = broker.id === status.controller_id;
  const activity = status.activity[broker.id] || {};
  const own = activity.resources || {};
  return h("tr", {},
    h("td", {}, h("b", {}, broker.id), isController ? h("span", { class: "badge term" }, "controller") : null),
    h("td", {}, broker.answers ? "answers" : badge("no answer")),
    h("td", {}, broker.listeners.length ? broker.listeners.map((it) => h("div", {}, it)) : `${broker.host}:${broker.port}`),
    cells([broker.rack]),
    numbers([run.brokerEpochs.get(broker.id), activity.leaders ?? leaders.get(broker.id) ?? 0, bytes(activity.bytes_in), bytes(activity.bytes_out), whole(activity.messages_in),
      percent(activity.cpu_ms === null || activity.cpu_ms === undefined ? null : activity.cpu_ms / 1000), bytes(own.memory_bytes)]),
    h("td", {}, disk(own)));
}

function knowledgeRow(broker) {
  return h("tr", {},
    h("td", {}, h("b", {}, broker.id)),
    cells([broker.controller_id]),
    numbers([broker.controller_epoch, broker.partitions_behind ? badge(broker.partitions_behind) : broker.partitions_behind, broker.unacknowledged_requests,
      broker.oldest_request_ms === null || !broker.unacknowledged_requests ? null : `${Math.round(broker.oldest_request_ms)} ms`]));
}

// The fullest disk of the broker's log directories.
function disk(own) {
  if (own.offline_dirs) return badge(`${own.offline_dirs} failed`);
  if (!own.disk_total) return "–";
  const used = 1 - own.disk_usable / own.disk_total;
  return h("span", { class: "disk", title: `${bytes(own.disk_usable)} of ${bytes(own.disk_total)} are free on the fullest disk` },
    h("i", {}, h("i", { class: used > FULL ? "bad" : null, style: { width: `${Math.round(used * 100)}%` } })), `${bytes(own.disk_usable)} free`);
}

function partitionRow(it, onPartition) {
  const name = `${it.topic}-${it.partition}`;
  return linkRow(name, "Show it in the control plane", () => onPartition(name),
    h("td", {}, h("b", {}, name)), h("td", {}, badge(it.states[0])), cells([it.leader, list(it.isr), list(it.replicas)]));
}
