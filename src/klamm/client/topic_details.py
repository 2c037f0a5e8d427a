"""Topics as the brokers report them: partitions, sizes on the disks, offsets, settings. One attempt per broker."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from klamm.client.broker_calls import ask_any, ask_each
from klamm.client.client_errors import ClientError, RetriableError, UnknownTopicError, error_name
from klamm.client.cluster_client import ClusterClient
from klamm.client.cluster_metadata import TopicState
from klamm.client.reset_rules import Bounds
from klamm.errors import ErrorCode
from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import INTERNAL_TOPICS, TopicPartition
from klamm.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from klamm.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from klamm.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

_TOPIC: Final = 2
_EARLIEST, _LATEST = -2, -1
_SOURCES: Final = {
    1: "topic",
    2: "broker",
    3: "cluster",
    4: "broker file",
    5: "default",
    6: "broker logger",
}


@lazy_dataclass(frozen=True, slots=True)
class PartitionView:
    index: int
    leader: int | None
    """None: the partition is offline."""
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@lazy_dataclass(frozen=True, slots=True)
class TopicView:
    name: str
    topic_id: str
    is_internal: bool
    partitions: tuple[PartitionView, ...]

    @property
    def offline(self) -> int:
        return sum(part.leader is None for part in self.partitions)

    @property
    def under_replicated(self) -> int:
        return sum(len(part.isr) < len(part.replicas) for part in self.partitions)

    def partition_ids(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, part.index) for part in self.partitions]


@lazy_dataclass(frozen=True, slots=True)
class ReplicaSize:
    broker_id: int
    log_dir: str
    size_bytes: int
    offset_lag: int
    is_future: bool
    """A copy that a move between log directories builds."""


@lazy_dataclass(frozen=True, slots=True)
class Setting:
    name: str
    value: str | None
    """None: the value is secret, or not set."""
    source: str
    is_secret: bool
    is_read_only: bool


def topic_views(client: ClusterClient, names: Iterable[str] | None = None) -> list[TopicView]:
    """Return these topics, or all, by name. Topics that do not exist are left out."""
    state = client.metadata(names)
    return [_view(name, topic, state.brokers.keys()) for name, topic in sorted(state.topics.items())]


def topic_view(client: ClusterClient, name: str) -> TopicView:
    """Return one topic. Raises UnknownTopicError."""
    found = topic_views(client, [name])
    if not found:
        raise UnknownTopicError(f"There is no topic {name}.")
    return found[0]


def _view(name: str, topic: TopicState, alive: Collection[int]) -> TopicView:
    partitions = tuple(
        PartitionView(
            index,
            part.leader if part.leader in alive else None,
            part.leader_epoch,
            part.replicas,
            part.isr,
        )
        for index, part in sorted(topic.partitions.items())
    )
    topic_id = "" if topic.topic_id is None else str(topic.topic_id)
    return TopicView(name, topic_id, topic.is_internal or name in INTERNAL_TOPICS, partitions)


def replica_sizes(
    client: ClusterClient, topic: TopicView | None = None
) -> tuple[dict[TopicPartition, list[ReplicaSize]], list[str]]:
    """Return the replicas of one topic, or of all, on the disks; and a sentence per broker that does not answer."""
    wanted = None
    if topic is not None:
        wanted = [DescribableLogDirTopic(topic=topic.name, partitions=[part.index for part in topic.partitions])]
    answers, problems = ask_each(client, DescribeLogDirsRequest(topics=wanted), DescribeLogDirsResponse, _check_dirs)
    found: dict[TopicPartition, list[ReplicaSize]] = {}
    for broker_id, answer in answers.items():
        for place in answer.results:
            if place.error_code != ErrorCode.NONE:
                problems.append(f"Broker {broker_id}, {place.log_dir}: {error_name(place.error_code)}.")
            for each in place.topics:
                for part in each.partitions:
                    replica = ReplicaSize(
                        broker_id, place.log_dir, part.partition_size, part.offset_lag, part.is_future_key
                    )
                    found.setdefault(TopicPartition(each.name, part.partition_index), []).append(replica)
    return found, problems


def log_bounds(
    client: ClusterClient, topics: Iterable[TopicView], wanted: Iterable[TopicPartition] | None = None
) -> tuple[dict[TopicPartition, Bounds], list[str]]:
    """Return the first offset and the end of the partitions whose leader answers, and a sentence about the others."""
    first, problems = offsets_at(client, topics, _EARLIEST, wanted)
    end, more = offsets_at(client, topics, _LATEST, first.keys())
    bounds = {
        tp: Bounds(start, last)
        for tp, start in first.items()
        if start is not None and (last := end.get(tp)) is not None
    }
    return bounds, list(dict.fromkeys([*problems, *more]))


def offsets_at(
    client: ClusterClient, topics: Iterable[TopicView], time_ms: int, wanted: Iterable[TopicPartition] | None = None
) -> tuple[dict[TopicPartition, int | None], list[str]]:
    """Return the first offset at or after a time by partition: None if no record is that new."""
    chosen = None if wanted is None else set(wanted)
    by_leader: dict[int, dict[str, list[int]]] = {}
    problems: list[str] = []
    for topic in topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.index)
            if chosen is not None and tp not in chosen:
                continue
            if part.leader is None:
                problems.append(f"{tp} has no leader.")
            else:
                by_leader.setdefault(part.leader, {}).setdefault(topic.name, []).append(part.index)
    found: dict[TopicPartition, int | None] = {}
    for leader, partitions in sorted(by_leader.items()):
        try:
            answer = client.connection(client.addresses()[leader]).ask(
                _offsets(partitions, time_ms), ListOffsetsResponse
            )
        except (OSError, KeyError) as error:
            problems.append(f"Broker {leader} does not return offsets: {error}.")
            continue
        for each in answer.topics:
            for row in each.partitions:
                tp = TopicPartition(each.name, row.partition_index)
                if row.error_code == ErrorCode.NONE:
                    found[tp] = row.offset if row.offset >= 0 else None
                else:
                    problems.append(f"{tp}: {error_name(row.error_code)}.")
    return found, problems


def _offsets(partitions: Mapping[str, list[int]], time_ms: int) -> ListOffsetsRequest:
    topics = [
        ListOffsetsTopic(
            name=name,
            partitions=[ListOffsetsPartition(partition_index=index, timestamp=time_ms) for index in indexes],
        )
        for name, indexes in partitions.items()
    ]
    return ListOffsetsRequest(replica_id=-1, topics=topics)


def topic_settings(client: ClusterClient, name: str) -> list[Setting]:
    """Return the settings in force, those of the topic itself first. Raises ClientError."""
    resource = DescribeConfigsResource(resource_type=_TOPIC, resource_name=name, configuration_keys=None)
    request = DescribeConfigsRequest(resources=[resource])
    (answer,) = ask_any(client, f"the settings of {name}", request, DescribeConfigsResponse).results
    if answer.error_code != ErrorCode.NONE:
        raise ClientError(f"The settings of {name}: {error_name(answer.error_code)}.")
    found = [
        Setting(
            each.name,
            None if each.is_sensitive else each.value,
            _SOURCES.get(each.config_source, "unknown"),
            each.is_sensitive,
            each.read_only,
        )
        for each in answer.configs
    ]
    return sorted(found, key=lambda setting: (setting.source != "topic", setting.name))


def _check_dirs(answer: DescribeLogDirsResponse) -> None:
    if answer.error_code != ErrorCode.NONE:
        raise RetriableError(error_name(answer.error_code))
