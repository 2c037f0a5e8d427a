"""Read, process, write, exactly once: three brokers and three copiers that are killed, paused and cut off.

A broker is cut off from its clients, or from the other brokers and ZooKeeper; half of the victims are coordinators.
All records of nine partitions arrive once and in order, with a transactional producer per task and with producers that
are fenced with the members of their group. 3,000 records by default; KLAMM_CHAIN_RECORDS says how many,
KLAMM_CHAIN_SEED which faults. The time that a fault costs is reported, not judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.support.chain import (
    GROUP,
    PARTITIONS,
    SOURCE,
    TARGET,
    WAIT_S,
    Chain,
    check_replicas,
    chosen_records,
    chosen_seed,
)
from tests.support.chain_copier import Plan
from tests.support.chain_copiers import Copiers, Mode
from tests.support.relayed_cluster import divisible_cluster

RECORDS = chosen_records(3_000)
TIMEOUT_S = 1_200 + RECORDS / 20
BROKERS = 3
CONFIG: Final[Mapping[str, object]] = {
    "group.min.session.timeout.ms": 1_000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    "auto.leader.rebalance.enable": True,
    "leader.imbalance.check.interval.seconds": 5,
}


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.long
@pytest.mark.parametrize("mode", ["tasks", "members"])
def test_chain(mode: Mode, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = chosen_seed()
    with divisible_cluster(BROKERS, CONFIG, tmp_path / "data", WAIT_S) as (cluster, relays, network):
        plan = Plan(relays.bootstrap_servers, SOURCE, TARGET, GROUP, "", "chain", 0, (), str(tmp_path), seed)
        chain = Chain(cluster, relays, network, Copiers(mode, plan, PARTITIONS), records=RECORDS, seed=seed)
        with capsys.disabled():
            print(f"\nchain of {mode}: KLAMM_CHAIN_SEED={seed}, data in {tmp_path}")
        try:
            problems = chain.run()
        finally:
            with capsys.disabled():
                print(chain.report())
        assert not problems, "\n".join(problems)
        for broker_id in cluster.broker_ids:
            assert "Traceback" not in cluster.logs(broker_id).read_text(), f"see {cluster.logs(broker_id)}"
            cluster.stop(broker_id)
        problems = check_replicas(cluster.data_dir, cluster.broker_ids)
        assert not problems, "\n".join(problems)
