"""Three brokers under load while leaders, controllers and ZooKeeper die, stand still, move and come back.

Every acknowledged record is there once and in order, in every replica, and the group has read all. 10 s by default;
KLAMM_CHAOS_SECONDS says how long, KLAMM_CHAOS_SEED which faults. The longest unavailability is reported, not judged.
`make compat NAME=long_forms` runs it for 60 s, its quick form for 24 s.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from klamm.testing import LocalCluster
from tests.support.chaos import (
    WAIT_S,
    Chaos,
    EmbeddedZooKeeper,
    ZooKeeper,
    check_files,
    chosen_seconds,
    chosen_seed,
)
from tests.support.real_zookeeper import RealZooKeeper

EMBEDDED_S = chosen_seconds(10)
REAL_S = EMBEDDED_S / 2
TIMEOUT_S = 1_200
CONFIG = {"auto.leader.rebalance.enable": True, "leader.imbalance.check.interval.seconds": 5}


def run(cluster: LocalCluster, zookeeper: ZooKeeper, seconds: float, capsys: pytest.CaptureFixture[str]) -> None:
    chaos = Chaos(cluster, zookeeper, seconds=seconds, seed=chosen_seed())
    with capsys.disabled():
        print(f"\nchaos: KLAMM_CHAOS_SEED={chaos.seed}, data in {cluster.data_dir}")
    try:
        problems = chaos.run()
    finally:
        with capsys.disabled():
            print(chaos.report())
    assert not problems, "\n".join(problems)
    assert chaos.faults and chaos.account.acked_count
    for broker_id in cluster.broker_ids:
        assert "Traceback" not in cluster.logs(broker_id).read_text(), f"see {cluster.logs(broker_id)}"
        cluster.stop(broker_id)
    problems = check_files(cluster.data_dir, cluster.broker_ids)
    assert not problems, "\n".join(problems)


@pytest.mark.long
@pytest.mark.timeout(EMBEDDED_S + TIMEOUT_S)
def test_chaos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with LocalCluster(brokers=3, data_dir=tmp_path, broker_configs=CONFIG, start_timeout_s=WAIT_S) as cluster:
        run(cluster, EmbeddedZooKeeper(cluster), EMBEDDED_S, capsys)


@pytest.mark.timeout(REAL_S + TIMEOUT_S)
@pytest.mark.long
def test_chaos_on_a_real_zookeeper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "zookeeper").mkdir()
    with (
        RealZooKeeper(tmp_path / "zookeeper", tick_time_ms=500) as zookeeper,
        LocalCluster(
            brokers=3,
            data_dir=tmp_path / "brokers",
            zookeeper=zookeeper.address,
            broker_configs=CONFIG,
            start_timeout_s=WAIT_S,
        ) as it,
    ):
        run(it, zookeeper, REAL_S, capsys)
