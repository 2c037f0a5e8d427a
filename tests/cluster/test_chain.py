"""Read, process, write, exactly once: three brokers and three copiers that are killed, paused and cut off.

All records of nine partitions arrive once and in order, with a transactional producer per task and with producers that
are fenced with the members of their group. 3,000 records by default; KLAMM_CHAIN_RECORDS says how many,
KLAMM_CHAIN_SEED which faults. The time that a fault costs is reported, not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from klamm.local.ports import LOOPBACK, ReservedPort
from klamm.testing import LocalCluster
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
from tests.support.relays import Relays

RECORDS = chosen_records(3_000)
TIMEOUT_S = 1_200 + RECORDS / 20
BROKERS = 3
CONFIG: Final[Mapping[str | int, object]] = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENT:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "group.min.session.timeout.ms": 1_000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    "auto.leader.rebalance.enable": True,
    "leader.imbalance.check.interval.seconds": 5,
}


def listeners(port: int, client_port: int, relay_port: int) -> dict[str, object]:
    """The brokers and the test reach a broker at `port`, the copiers through its relay."""
    own = f"PLAINTEXT://{LOOPBACK}:{port},CLIENT://{LOOPBACK}:"
    return {"listeners": f"{own}{client_port}", "advertised.listeners": f"{own}{relay_port}"}


@pytest.fixture
def relays() -> Iterator[tuple[Relays, dict[int, int]]]:
    """The relays, and the port of each broker's client listener."""
    with ExitStack() as stack:
        ports = {i: stack.enter_context(ReservedPort()).number for i in range(1, BROKERS + 1)}
        relays = Relays(ports)
        stack.callback(relays.close)
        yield relays, ports


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("mode", ["tasks", "members"])
def test_chain(
    mode: Mode, relays: tuple[Relays, dict[int, int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network, client_ports = relays
    seed = chosen_seed()
    plan = Plan(network.bootstrap_servers, SOURCE, TARGET, GROUP, "", "chain", 0, (), str(tmp_path), seed)
    with ExitStack() as stack:
        own = {i: stack.enter_context(ReservedPort()).number for i in client_ports}
        configs = {**CONFIG}
        configs |= {i: listeners(own[i], client_ports[i], network.ports[i]) for i in own}
        cluster = LocalCluster(
            BROKERS,
            data_dir=tmp_path / "data",
            broker_configs=configs,
            ports=own.values(),
            start_timeout_s=WAIT_S,
        )
        stack.enter_context(cluster)
        chain = Chain(cluster, network, Copiers(mode, plan, PARTITIONS), records=RECORDS, seed=seed)
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
