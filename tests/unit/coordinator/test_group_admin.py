"""Listing, describing and deleting groups; which broker may do it; metrics."""

from __future__ import annotations

from klamm.coordinator.group_metadata import GroupState
from klamm.errors import ErrorCode
from klamm.metrics import Gauge
from tests.unit.coordinator.harness import GROUP, Harness


def test_listing_with_filters() -> None:
    harness = Harness().start()
    harness.commit(1, group_id="simple")
    harness.stable_group()
    error, groups = harness.coordinator.list_groups()
    assert error is ErrorCode.NONE
    assert [(g.group_id, g.protocol_type, g.state, g.group_type) for g in groups] == [
        ("simple", "", "Empty", "classic"),
        (GROUP, "consumer", "Stable", "classic"),
    ]
    assert [g.group_id for g in harness.coordinator.list_groups(["stable"])[1]] == [GROUP]
    assert harness.coordinator.list_groups(["Dead"])[1] == []
    assert len(harness.coordinator.list_groups(types=["Classic"])[1]) == 2
    assert harness.coordinator.list_groups(types=["consumer"])[1] == []


def test_describing() -> None:
    harness = Harness().start()
    (leader, _), _ = harness.stable_group(2)
    error, summary = harness.coordinator.describe_group(GROUP)
    assert (error, summary.state, summary.protocol_type, summary.protocol) == (0, "Stable", "consumer", "range")
    assert {m.member_id: m.assignment for m in summary.members}[leader] == b"for " + leader.encode()
    assert summary.members[0].client_host == "/127.0.0.1"
    harness.join(version=0)
    _, rebalancing = harness.coordinator.describe_group(GROUP)
    assert (rebalancing.state, rebalancing.protocol) == ("PreparingRebalance", "")
    assert all(m.metadata == m.assignment == b"" for m in rebalancing.members)
    assert harness.coordinator.describe_group("nobody")[1].state == "Dead"


def test_deleting_groups() -> None:
    harness = Harness().start()
    harness.stable_group()
    harness.commit(1, group_id="simple")
    result = harness.coordinator.delete_groups([GROUP, "simple", "nobody", GROUP]).value
    assert result == {
        GROUP: ErrorCode.NON_EMPTY_GROUP,
        "simple": ErrorCode.NONE,
        "nobody": ErrorCode.GROUP_ID_NOT_FOUND,
    }
    harness.pass_ms(10_000)
    assert harness.coordinator.delete_groups([GROUP]).value == {GROUP: ErrorCode.NONE}
    assert harness.restart().coordinator.list_groups()[1] == []


def test_a_group_is_dead_while_its_tombstones_are_written_and_lives_on_if_they_are_not() -> None:
    harness = Harness().start()
    harness.commit(1)
    harness.log.holds = True
    deleted = harness.coordinator.delete_groups([GROUP])
    assert harness.join(version=0).value.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert list(harness.commit(2).value.values()) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert harness.coordinator.delete_groups([GROUP]).value == {GROUP: ErrorCode.GROUP_ID_NOT_FOUND}
    harness.log.release(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    assert deleted.value == {GROUP: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert harness.committed() == 1
    assert harness.state() is GroupState.EMPTY


def test_a_group_can_start_again_after_its_deletion() -> None:
    harness = Harness().start()
    harness.stable_group()
    harness.pass_ms(10_000)
    harness.coordinator.delete_groups([GROUP])
    assert harness.join(version=0).value.generation_id == 1


def test_a_broker_that_does_not_lead_the_partition_is_not_the_coordinator() -> None:
    harness = Harness()
    harness.coordinator.startup()
    assert harness.join(version=0).value.error is ErrorCode.NOT_COORDINATOR
    assert harness.sync("m", 1).value.error is ErrorCode.NOT_COORDINATOR
    assert harness.heartbeat("m", 1) is ErrorCode.NOT_COORDINATOR
    assert harness.coordinator.leave_group(GROUP, []) == (ErrorCode.NOT_COORDINATOR, ())
    assert list(harness.commit(1).value.values()) == [ErrorCode.NOT_COORDINATOR]
    assert harness.committed() is ErrorCode.NOT_COORDINATOR
    assert harness.coordinator.describe_group(GROUP)[0] is ErrorCode.NOT_COORDINATOR
    assert harness.coordinator.delete_groups([GROUP]).value == {GROUP: ErrorCode.NOT_COORDINATOR}


def test_while_loading() -> None:
    harness = Harness()
    harness.coordinator.startup()
    harness.manager.on_election(0, 0)
    assert harness.join(version=0).value.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert harness.sync("m", 1).value.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert harness.heartbeat("m", 1) is ErrorCode.NONE
    assert harness.committed() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert harness.coordinator.list_groups()[0] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_metrics_have_kafkas_names() -> None:
    harness = Harness().start()
    harness.commit(1, group_id="simple")
    harness.stable_group()

    def value(name: str) -> object:
        gauge = harness.registry.find("kafka.coordinator.group", "GroupMetadataManager", name)
        assert isinstance(gauge, Gauge)
        return gauge.value

    names = ["NumGroups", "NumOffsets", "NumGroupsEmpty", "NumGroupsStable", "NumGroupsPreparingRebalance"]
    assert [value(name) for name in names] == [2, 1, 1, 1, 0]
    assert (value("NumGroupsCompletingRebalance"), value("NumGroupsDead")) == (0, 0)
    assert "kafka_coordinator_group_groupmetadatamanager_numgroups 2" in harness.registry.exposition()
