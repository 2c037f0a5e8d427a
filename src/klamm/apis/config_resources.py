"""The common part of the config APIs: which resources this broker may answer for, and how they change.

Every broker answers for topics, but only the broker itself for its settings. The empty broker name means the defaults
of all brokers, which every broker can change. Settings are read from and written to ZooKeeper, then applied here; the
other brokers are notified through /config/changes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

from klamm.apis.access import may, may_on_cluster
from klamm.apis.api_declaration import Broker, RequestContext
from klamm.apis.zookeeper_waits import (
    NO_ERROR,
    NOT_TRIED,
    READ_WAIT_MS,
    ApiError,
    Outcome,
    change_in_time,
    read_in_time,
    refusal,
)
from klamm.config import DEFAULT_BROKER, validate_broker_config, validate_topic_config
from klamm.config.loggers import check_level, set_level
from klamm.config_changes import BROKERS, TOPICS, Properties, change_config, read_configs
from klamm.errors import ErrorCode
from klamm.protocol.chunked import ChunkedList
from klamm.security.acl.bindings import AclOperation
from klamm.security.acl.bindings import ResourceType as AclResourceType
from klamm.waiting import Steps, result_of

MAX_CONFIGS: Final = 1000
"""Settings of one resource in a request; there are far fewer keys."""
_SLICE: Final = 200
"""Resources that are checked before the loop serves others."""


class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8


class Resource(NamedTuple):
    type: int
    name: str


class NamedResource(Protocol):
    """A resource as the requests name it."""

    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...


R = TypeVar("R", bound=NamedResource)
A = TypeVar("A")
Change = Callable[[Properties], Properties]


def check_access(broker: Broker, ctx: RequestContext, resource: Resource, operation: AclOperation) -> None:
    """Raise if the client may not see or change the resource. An unknown type is refused later."""
    if resource.type == ResourceType.TOPIC:
        if not may(broker, ctx, operation, AclResourceType.TOPIC, resource.name):
            raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
    elif not may_on_cluster(broker, ctx, operation):
        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")


def check_resource(broker: Broker, resource: Resource) -> None:
    """Raise if the resource does not exist, or if another broker must be asked."""
    match resource.type:
        case ResourceType.TOPIC:
            if not resource.name:
                raise ApiError(ErrorCode.INVALID_REQUEST, "A topic must be named: the default topic is not a resource.")
            if not broker.metadata.contains(resource.name):
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {resource.name}.")
        case ResourceType.BROKER:
            if resource.name and resource.name != str(broker.id):
                raise ApiError(ErrorCode.INVALID_REQUEST, _other_broker(broker, resource.name, " or an empty name"))
        case ResourceType.BROKER_LOGGER:
            if resource.name != str(broker.id):
                raise ApiError(ErrorCode.INVALID_REQUEST, _other_broker(broker, resource.name, ""))
        case _:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Resources of type {resource.type} have no configuration here.")


def _other_broker(broker: Broker, name: str, also: str) -> str:
    return f"This is broker {broker.id}, not {name!r}: expected {broker.id}{also}. Ask that broker."


def key_of(resource: NamedResource) -> Resource:
    return Resource(resource.resource_type, resource.resource_name)


def alter_each(
    ctx: RequestContext,
    resources: Sequence[R],
    change: Callable[[R], Outcome | asyncio.Future[Outcome]],
    answer: Callable[..., A],
) -> Steps[Sequence[A]]:
    """Change one resource after the other; a resource that is named twice is refused both times.

    After a timeout of ZooKeeper the rest is not tried.
    """
    times: Counter[Resource] = Counter()
    ctx.hold(times)
    for start in range(0, len(resources), _SLICE):
        if start:
            yield
        times.update(map(key_of, resources[start : start + _SLICE]))
    answers: ChunkedList[A] = ChunkedList()
    is_late = False
    for resource in resources:
        key = key_of(resource)
        if times[key] > 1:
            outcome: Outcome = ErrorCode.INVALID_REQUEST, "A resource may be named only once in a request."
        elif is_late:
            outcome = NOT_TRIED
        else:
            if answers:
                yield
            outcome = yield from result_of(change(resource))
            is_late = outcome[0] == ErrorCode.REQUEST_TIMED_OUT
        code, message = outcome
        if len(answers) % _SLICE == _SLICE - 1:
            yield
        answers.append(answer(error_code=code, error_message=message, resource_type=key.type, resource_name=key.name))
    return answers


def check_count(configs: Sequence[object]) -> None:
    if len(configs) > MAX_CONFIGS:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"More than {MAX_CONFIGS} settings are changed for a resource.")


def topic_overrides(broker: Broker, topics: list[str]) -> asyncio.Future[dict[str, Properties]]:
    """Read the configurations of topics from ZooKeeper, also of those that this broker does not host.

    While ZooKeeper is unreachable, the settings that this broker applied last are returned.
    """
    return read_in_time(
        broker,
        read_configs(broker.zk, TOPICS, topics, broker.configs),
        READ_WAIT_MS,
        lambda _: {topic: dict(broker.configs.topic_overrides(topic)) for topic in topics},
    )


def alter(
    broker: Broker, resource: Resource, change: Change, *, validate_only: bool
) -> Outcome | asyncio.Future[Outcome]:
    """Change the settings of a topic or broker: check, write with a notification, apply here."""
    try:
        check_resource(broker, resource)
    except ApiError as error:
        return error.code, error.message
    apply: Callable[[Properties], object]
    if resource.type == ResourceType.TOPIC:
        entity_type, entity = TOPICS, resource.name
        checked, apply = _checked_topic(change), partial(broker.configs.set_topic, entity)
    else:
        entity_type, entity = BROKERS, resource.name or DEFAULT_BROKER
        checked, apply = _checked_broker(broker, resource.name, change), partial(_apply_to_broker, broker, entity)
    refuse = refusal(f"the configuration of {resource.name}")
    if validate_only:
        found = read_configs(broker.zk, entity_type, [entity], broker.configs)
        return change_in_time(broker, found, lambda configs: checked(configs[entity]), refuse)
    changed = change_config(broker.zk, entity_type, entity, checked, broker.configs)
    return change_in_time(broker, changed, apply, refuse)


def _checked_topic(change: Change) -> Change:
    def checked(before: Properties) -> Properties:
        after = change(before)
        if (problem := validate_topic_config(after)) is not None:
            raise ApiError(ErrorCode.INVALID_CONFIG, problem)
        return after

    return checked


def _checked_broker(broker: Broker, name: str, change: Change) -> Change:
    def checked(before: Properties) -> Properties:
        after = change(dict(before))
        new = {key: value for key, value in after.items() if before.get(key) != value}
        problem = validate_broker_config(broker.config, new, per_broker=bool(name), current=before)
        if problem is None:
            problem = broker.configs.file_problem(name or DEFAULT_BROKER, before, after)
        if problem is not None:
            raise ApiError(ErrorCode.INVALID_REQUEST, problem)
        return after

    return checked


def _apply_to_broker(broker: Broker, entity: str, after: Properties) -> None:
    broker.configs.set_broker(entity, after)
    if entity != DEFAULT_BROKER:
        broker.configs.reload_files()  # also if the same file was named again: its content may be new


def alter_loggers(
    broker: Broker, resource: Resource, levels: Mapping[str, str | None], *, validate_only: bool
) -> Outcome:
    """Set levels of this process's loggers, all or none; a restart resets them."""
    try:
        check_resource(broker, resource)
    except ApiError as error:
        return error.code, error.message
    for name, level in levels.items():
        if (problem := check_level(name, level)) is not None:
            return ErrorCode.INVALID_CONFIG, problem
    if not validate_only:
        for name, level in levels.items():
            set_level(name, level)
    return NO_ERROR
