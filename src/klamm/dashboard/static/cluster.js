// The Cluster tab: brokers, and the partitions that need attention first.

import { fill, h, list } from "./dom.js";
import { badge, bytes, cells, linkRow, table, tile, whole } from "./parts.js";

export function showCluster(element, status, run, onPartition) {
  if (status.problem) {
    fill(element, h("p", { class: "bad" }, status.problem));
    return;
  }
  const leaders = leaderCounts(run);
  const sum = (field) => Object.values(status.activity).reduce((total, it) => total + (it[field] ?? 0), 0);
  fill(element,
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
    table(["broker", "address", "rack", "state", "leaders", "in/s", "out/s", "records/s", "requests/s", "connections", "controller it knows", "epoch", "partitions behind", "unacknowledged", "oldest request"],
      [...status.brokers.map((it) => brokerRow(it, status, leaders)),
        ...status.missing_brokers.map((it) => h("tr", { class: "down" }, cells([it.id, "", "", badge("missing")]), h("td", { colspan: "11" })))]),
    h("h2", {}, "Partitions that need attention"),
    status.unwell_partitions.length ? table(["partition", "state", "leader", "ISR", "replicas"], status.unwell_partitions.map((it) => partitionRow(it, onPartition)))
      : h("p", { class: "hint" }, "None: every partition has a leader and all its replicas in sync."),
    status.moving_partitions.length ? [h("h2", {}, "Partitions that are being moved"), table(["partition", "state", "leader", "ISR", "replicas"], status.moving_partitions.map((it) => partitionRow(it, onPartition)))] : null);
}

function leaderCounts(run) {
  const counts = new Map();
  for (const series of run.truth.values()) {
    const leader = series.last?.leader;
    if (leader >= 0) counts.set(leader, (counts.get(leader) || 0) + 1);
  }
  return counts;
}

function brokerRow(broker, status, leaders) {
  const isController = broker.id === status.controller_id;
  const activity = status.activity[broker.id] || {};
  return h("tr", {},
    h("td", {}, h("b", {}, broker.id), isController ? h("span", { class: "badge term" }, "controller") : null),
    cells([`${broker.host}:${broker.port}`, broker.rack, broker.answers ? "answers" : badge("no answer"), activity.leaders ?? leaders.get(broker.id) ?? 0, bytes(activity.bytes_in), bytes(activity.bytes_out), whole(activity.messages_in), whole(activity.requests), activity.connections, broker.controller_id,
      broker.controller_epoch, broker.partitions_behind ? badge(broker.partitions_behind) : broker.partitions_behind, broker.unacknowledged_requests,
      broker.oldest_request_ms === null ? null : `${Math.round(broker.oldest_request_ms)} ms`]));
}

function partitionRow(it, onPartition) {
  const name = `${it.topic}-${it.partition}`;
  return linkRow(name, "Show it in the control plane", () => onPartition(name),
    h("td", {}, h("b", {}, name)), h("td", {}, badge(it.states[0])), cells([it.leader, list(it.isr), list(it.replicas)]));
}
