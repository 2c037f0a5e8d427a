"""The control plane's bench at a tiny scale: every part runs and gives figures that can be true."""

from __future__ import annotations

import pytest

from bench.clusters import KlammCluster
from bench.control_plane import core, failover, one_change, peer, stopped_broker
from bench.control_plane.__main__ import PARTS, text
from bench.report import Row
from klamm.zk.model import ops, paths


@pytest.mark.long
def test_the_rows_that_kafka_gives_as_well() -> None:
    with KlammCluster(3, peer.CONFIGS) as cluster:
        assert peer.propagation_ms(cluster, 2).p99 > 0
        rows = list(peer.run(cluster, 4))
        assert [row.value > 0 for row in rows] == [True] * 4, rows


@pytest.mark.long
def test_failover_with_brokers_that_only_answer() -> None:
    found = failover.measure(60)
    assert 0 <= found.elected_s <= found.sent_s and found.event_s > 0
    assert found.p99_ms > 0 and found.rss_mb > 0 and found.zookeeper_rss_mb > 0


def test_the_core_alone_elects_and_notifies_every_broker_once() -> None:
    tree = core.cluster(60)
    tree.multi(1, [ops.Delete(paths.broker_path(3))], 0)
    driver = core.CoreDriver(tree)
    driver.start()
    states = driver.controller.context.states.leadership.values()
    assert len(states) == 60 and all(3 not in state.leader_and_isr.isr for state in states)
    assert [broker for broker, _ in driver.sent] == [1, 2] * 3  # who lives, LeaderAndIsr, UpdateMetadata


def test_one_change_and_a_stopped_broker() -> None:
    assert all(row.value > 0 for row in one_change.rows(20, 40, 10))
    queue, plain, _ = stopped_broker.rows(20, 1.0)
    assert 0 < queue.value <= plain.value


def test_the_section_names_every_row_and_what_is_missing() -> None:
    written = text([Row("something", 1.5, "s")], ["life: broken"], 0.1)
    assert "| something | 1.5   | s    |" in written and "Not measured: life: broken." in written
    assert set(PARTS) == {"change", "failover", "life", "propagation", "start", "stopped", "control-log", "death"}
