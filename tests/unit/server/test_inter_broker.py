from __future__ import annotations

from typing import Final

import pytest
from compat.mixed_cluster import transactions as mixed_transactions

from klamm import apis
from klamm.controller.config import InterBrokerProtocol
from klamm.server.inter_broker import (
    FetcherVersions,
    controlled_shutdown_version,
    fetcher_versions,
    has_producer_id_rpc,
)

STEPS_OF_KAFKA: Final = tuple(
    f"{release}-IV{step}"
    for release, steps in {
        **{"2.4": 2, "2.5": 1, "2.6": 1, "2.7": 3, "2.8": 2, "3.0": 2, "3.1": 1, "3.2": 1},
        **{"3.3": 4, "3.4": 1, "3.5": 3, "3.6": 3, "3.7": 5, "3.8": 1, "3.9": 1},
    }.items()
    for step in range(steps)
)
"""The protocols from 2.4 on that Kafka 3.9.2 names."""


@pytest.mark.parametrize(
    ("ibp", "versions"),
    [
        ("2.4-IV0", (11, 5, 3)),
        ("2.6", (11, 5, 3)),
        ("2.7-IV0", (11, 5, 3)),
        ("2.7-IV1", (12, 5, 3)),
        ("2.8-IV0", (12, 6, 4)),
        ("3.0-IV0", (12, 6, 4)),
        ("3.0-IV1", (12, 7, 4)),
        ("3.1-IV0", (13, 7, 4)),
        ("3.4", (13, 7, 4)),
        ("3.5-IV0", (14, 8, 4)),
        ("3.5-IV1", (15, 8, 4)),
        ("3.7-IV3", (15, 8, 4)),
        ("3.7-IV4", (16, 8, 4)),
        ("3.8", (16, 8, 4)),
        ("3.9-IV0", (17, 9, 4)),
    ],
)
def test_the_versions_of_followers(ibp: str, versions: tuple[int, int, int]) -> None:
    assert fetcher_versions(InterBrokerProtocol.parse(ibp)) == FetcherVersions(*versions)


def test_a_leader_serves_what_a_follower_of_the_newest_protocol_sends() -> None:
    served = {api.name: api.versions[1] for api in apis.ALL}
    newest = fetcher_versions(InterBrokerProtocol.parse("3.9"))
    assert newest == (served["Fetch"], served["ListOffsets"], served["OffsetForLeaderEpoch"])


def test_producer_ids_come_from_the_controller_since_3_0() -> None:
    assert has_producer_id_rpc(InterBrokerProtocol.parse("3.0"))
    assert not has_producer_id_rpc(InterBrokerProtocol.parse("2.8"))


@pytest.mark.parametrize(("ibp", "version"), [("2.4-IV0", 2), ("2.4-IV1", 3), ("2.4", 3), ("3.9", 3)])
def test_the_version_of_a_controlled_shutdown(ibp: str, version: int) -> None:
    assert controlled_shutdown_version(InterBrokerProtocol.parse(ibp)) == version


def combination(ibp: str) -> tuple[object, ...]:
    """Return everything that this protocol decides about brokers."""
    version = InterBrokerProtocol.parse(ibp)
    return (
        fetcher_versions(version),
        has_producer_id_rpc(version),
        controlled_shutdown_version(version),
        version.leader_and_isr_version,
        version.update_metadata_version,
        version.stop_replica_version,
        version.has_alter_partition,
        version.has_topic_ids,
        version.has_leader_recovery_state,
        version.has_features,
        "markers of Kafka v1" if version.at_least(2, 8) else "markers of Kafka v0",
    )


def test_mixed_transactions_can_run_at_every_protocol_that_differs() -> None:
    combinations = {combination(it): it for it in mixed_transactions.DIFFERENT_PROTOCOLS}
    assert len(combinations) == len(mixed_transactions.DIFFERENT_PROTOCOLS), "one per combination"
    releases = {step.partition("-")[0] for step in STEPS_OF_KAFKA}
    assert {combination(it) for it in (*STEPS_OF_KAFKA, *releases)} == combinations.keys()
    assert releases <= mixed_transactions.PROTOCOLS.keys()
