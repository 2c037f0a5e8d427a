"""Problems of a cluster that no partition shows: internal topics that cannot be created, undecodable znodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from klamm.model import GROUP_METADATA_TOPIC, TopicPartition

if TYPE_CHECKING:
    from klamm.protocol.messages.metadata import MetadataResponse

_BROKER: Final = 4
_FACTOR: Final = "offsets.topic.replication.factor"
_ZOOKEEPER: Final = "zookeeper.connect"
Address = tuple[str, int]


def find_problems(
    address: Address, broker_id: int, view: MetadataResponse, unwell: Iterable[TopicPartition], timeout_s: float
) -> list[str]:
    """Return one sentence per problem, with its remedy, from the broker at `address` and from ZooKeeper."""
    configs = _broker_configs(address, broker_id, timeout_s)
    found = _internal_topics(configs.get(_FACTOR, ""), view)
    if hosts := configs.get(_ZOOKEEPER):
        found += _znodes(hosts, [str(topic.name) for topic in view.topics], list(unwell), timeout_s)
    return found


def _broker_configs(address: Address, broker_id: int, timeout_s: float) -> dict[str, str]:
    from klamm.cli.broker_requests import ask
    from klamm.protocol.messages.describe_configs import (
        DescribeConfigsRequest,
        DescribeConfigsResource,
        DescribeConfigsResponse,
    )

    keys = [_FACTOR, _ZOOKEEPER]
    broker = DescribeConfigsResource(resource_type=_BROKER, resource_name=str(broker_id), configuration_keys=keys)
    try:
        request = DescribeConfigsRequest(resources=[broker])
        answer = ask(address, request, 1, DescribeConfigsResponse, timeout_s)
    except OSError:
        return {}
    return {config.name: config.value or "" for result in answer.results for config in result.configs}


def _internal_topics(factor: str, view: MetadataResponse) -> list[str]:
    alive = len(view.brokers)
    is_there = any(topic.name == GROUP_METADATA_TOPIC for topic in view.topics)
    if is_there or not factor.isdecimal() or int(factor) <= alive:
        return []
    return [
        f"{GROUP_METADATA_TOPIC} cannot be created, so there are no consumer groups: {_FACTOR} is {factor}, live "
        f"brokers: {alive}. Start more brokers, or set a smaller factor."
    ]


def _znodes(hosts: str, topics: list[str], unwell: list[TopicPartition], timeout_s: float) -> list[str]:
    """Check the control znodes, those of all topics, and the states of unhealthy partitions."""
    from klamm.zk.client.blocking import BlockingSession
    from klamm.zk.model import paths, znodes
    from klamm.zk.model.ops import ZkError

    epoch = f"Set {paths.CONTROLLER_EPOCH} to a number that is at least the last controller epoch."
    lost = "Restore the znode; it held"
    checks: list[tuple[str, Callable[[bytes | None], Any], str]] = [
        (paths.CONTROLLER_EPOCH, znodes.decode_controller_epoch, epoch),
        (paths.CONTROLLER, znodes.decode_controller, f"Delete {paths.CONTROLLER}: the brokers elect a controller."),
        (paths.CLUSTER_ID, znodes.decode_cluster_id, f"{lost} the cluster id of meta.properties."),
        (paths.FEATURE, znodes.decode_feature, f"Delete {paths.FEATURE}: the next controller writes it."),
        (
            paths.PRODUCER_ID_BLOCK,
            znodes.decode_producer_id_block,
            f"{lost} the last block of producer ids; a higher block is safe.",
        ),
        (paths.REASSIGN_PARTITIONS, znodes.decode_reassignment, f"Delete {paths.REASSIGN_PARTITIONS}."),
    ]
    checks += [
        (paths.topic_path(name), partial(znodes.decode_topic, name), f"{lost} the assignment.") for name in topics
    ]
    checks += [
        (
            paths.partition_state_path(*tp),
            partial(znodes.decode_partition_state, tp, version=0),
            f"{lost} leader, ISR and epochs. Without it the controller elects no leader.",
        )
        for tp in unwell
    ]
    try:
        with BlockingSession(hosts, timeout_s) as session:
            found = session.read_many([path for path, _, _ in checks])
    except ZkError:
        return []
    problems = []
    for (_, decode, remedy), node in zip(checks, found, strict=True):
        try:
            if node is not None:
                decode(node)
        except znodes.ZnodeFormatError as error:
            problems.append(f"{error}. {remedy}")
    return problems
