"""Reads and writes of topics and brokers: assignments, ids, the deletion queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from uuid import UUID

from klamm.controller.context import ControllerContext
from klamm.controller.effects import Note, Steps
from klamm.controller.store import (
    MAX_OPS,
    delete_all,
    delete_groups,
    fenced,
    may_be_tried_again,
    read,
    read_children,
    read_data,
)
from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import ZERO_UUID, BrokerEndPoints, ReplicaAssignment
from klamm.zk.model import paths
from klamm.zk.model.broker_znode import BrokerInfo, decode_broker, without_unclean_shutdown
from klamm.zk.model.ops import (
    ConnectionLoss,
    Create,
    GetChildren,
    GetChildrenResult,
    MultiFailed,
    NodeExists,
    NotEmpty,
    RequestTooLarge,
    SetData,
    ZkError,
)
from klamm.zk.model.znodes import TopicZnode, ZnodeFormatError, decode_topic, encode_topic

DELETE_RETRIES = 3
"""How often the znodes of a topic are listed again while others add to them; then it waits in the queue."""


@lazy_dataclass(frozen=True, slots=True)
class StoredTopic:
    znode: TopicZnode
    version: int

    @property
    def topic_id(self) -> UUID:
        return self.znode.topic_id or ZERO_UUID


def read_topics(topics: Iterable[str], *, watch: bool = False) -> Steps[dict[str, StoredTopic]]:
    """Return the readable topics; an undecodable znode is logged and ignored."""
    names = list(topics)
    results = yield from read_data((paths.topic_path(topic) for topic in names), watch=watch)
    stored = {}
    for topic, result in zip(names, results, strict=True):
        if result is None:
            continue
        try:
            stored[topic] = StoredTopic(decode_topic(topic, result.data), result.stat.version)
        except ZnodeFormatError as error:
            yield Note(str(error), True)
    return stored


Assignment = Mapping[int, ReplicaAssignment]


def rewrite_topic(
    ctx: ControllerContext, topic: str, change: Callable[[Assignment], Assignment]
) -> Steps[TopicZnode | None]:
    """Compare and swap a topic znode; unknown keys and the id stay. Returns None if the topic is gone.

    `change` may be called more than once and must be idempotent. If ZooKeeper refuses the write, the current content is
    returned.
    """
    while True:
        stored = (yield from read_topics([topic])).get(topic)
        if stored is None:
            return None
        topic_id = stored.znode.topic_id or ctx.topics.ids.get(topic)
        new = TopicZnode(change(stored.znode.assignment), topic_id, stored.znode.extra)
        if new == stored.znode:
            return new
        try:
            yield from fenced(ctx, [SetData(paths.topic_path(topic), encode_topic(new), stored.version)])
        except ConnectionLoss:
            continue
        except MultiFailed as failed:
            if may_be_tried_again(failed):
                continue
            yield Note(f"topic {topic} stays as it is: {failed}")
            return stored.znode
        except RequestTooLarge as error:
            yield Note(f"topic {topic} stays as it is: {error}")
            return stored.znode
        return new


def topic_size(ctx: ControllerContext, topic: str, changes: Assignment) -> int:
    """Return the size of a topic's znode with these partitions added or changed."""
    assignment = {**ctx.topics.get(topic, {}), **changes}
    return len(encode_topic(TopicZnode(assignment, ctx.topics.ids.get(topic, ZERO_UUID))))


def read_brokers(*, watch: bool = False) -> Steps[dict[int, BrokerInfo]]:
    """Return all registered brokers with their epochs. `watch` watches the list and each registration."""
    names = yield from read_children(paths.BROKER_IDS, watch=watch)
    ids = sorted(number for name in names if (number := paths.number_of(name)) is not None)
    results = yield from read_data((paths.broker_path(broker) for broker in ids), watch=watch)
    brokers = {}
    for broker_id, result in zip(ids, results, strict=True):
        if result is None:
            continue
        try:
            brokers[broker_id] = decode_broker(broker_id, result.data, result.stat.czxid)
        except ZnodeFormatError as error:
            yield Note(str(error), True)
    return brokers


def trust_registration(ctx: ControllerContext, broker: BrokerEndPoints) -> Steps[bool]:
    """Clear the unclean shutdown in a broker's registration. Return False to try again later."""
    path = paths.broker_path(broker.id)
    while True:
        (found,) = yield from read_data([path])
        if found is None or found.stat.czxid != broker.epoch:
            return False
        data = without_unclean_shutdown(broker.id, found.data)
        if data == found.data:
            return True
        try:
            yield from fenced(ctx, [SetData(path, data, found.stat.version)])
        except ConnectionLoss:
            continue
        except MultiFailed as failed:
            if may_be_tried_again(failed):
                continue
            yield Note(f"{path} cannot be written: {failed}")
        return True


def read_delete_topics(*, watch: bool = False) -> Steps[tuple[str, ...]]:
    return (yield from read_children(paths.DELETE_TOPICS, watch=watch))


def drop_delete_entries(ctx: ControllerContext, topics: Iterable[str]) -> Steps[None]:
    yield from delete_all(ctx, [paths.delete_topic_path(topic) for topic in topics])


def create_delete_entries(ctx: ControllerContext, topics: Sequence[str]) -> Steps[dict[str, ZkError]]:
    """Queue topics for deletion in ZooKeeper; existing entries count. Returns the refused ones."""
    left = list(topics)
    refused: dict[str, ZkError] = {}
    while left:
        chunk = left[:MAX_OPS]
        try:
            yield from fenced(ctx, [Create(paths.delete_topic_path(topic)) for topic in chunk])
        except ConnectionLoss:
            continue
        except MultiFailed as failed:
            topic = failed.op.path.rsplit("/", 1)[1]
            left.remove(topic)
            if not isinstance(failed.error, NodeExists):
                yield Note(f"topic {topic} cannot be queued for deletion: {failed.error}")
                refused[topic] = failed.error
            continue
        del left[: len(chunk)]
    return refused


def delete_topics(ctx: ControllerContext, topics: Sequence[str]) -> Steps[dict[str, ZkError]]:
    """Remove everything of these topics, children first; the queue entry last, so that a crash resumes.

    A topic with an undeletable znode (an ACL) stays queued and is returned with the reason. Unexpected or concurrent
    children are listed and deleted too.
    """
    refused = yield from delete_groups(ctx, (yield from _topic_trees(topics)))
    for _ in range(DELETE_RETRIES):
        again = [topic for topic, error in refused.items() if isinstance(error, NotEmpty)]
        if not again:
            break
        for topic in again:
            del refused[topic]
        refused |= yield from delete_groups(ctx, (yield from _whole_trees(again)))
    return refused


def _whole_trees(topics: Sequence[str]) -> Steps[dict[str, list[str]]]:
    """Every znode of these topics, of any creator, children before their parents."""
    trees = {}
    for topic in topics:
        roots = [paths.delete_topic_path(topic), paths.config_entity_path("topics", topic), paths.topic_path(topic)]
        found, level = list(roots), roots
        while level:
            results = yield from read(GetChildren(path) for path in level)
            level = [
                f"{path}/{name}"
                for path, result in zip(level, results, strict=True)
                if isinstance(result, GetChildrenResult)
                for name in result.children
            ]
            found += level
        entry, *others = found
        trees[topic] = [*reversed(others), entry]
    return trees


def _topic_trees(topics: Sequence[str]) -> Steps[dict[str, list[str]]]:
    results = yield from read(GetChildren(paths.topic_partitions_path(topic)) for topic in topics)
    trees = {}
    for topic, result in zip(topics, results, strict=True):
        doomed = []
        names = sorted(result.children) if isinstance(result, GetChildrenResult) else []
        for name in names:
            directory = f"{paths.topic_partitions_path(topic)}/{name}"
            doomed += [f"{directory}/state", directory]
        if isinstance(result, GetChildrenResult):
            doomed.append(paths.topic_partitions_path(topic))
        doomed += [paths.topic_path(topic), paths.config_entity_path("topics", topic), paths.delete_topic_path(topic)]
        trees[topic] = doomed
    return trees
