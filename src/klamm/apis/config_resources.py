"""What the config APIs have in common: the resources, which of them this broker may answer for, and how they change.

A topic is answered by every broker, a broker's settings by that broker only; the empty broker name means the defaults
of all brokers, which every broker can change. Settings are read from and written to ZooKeeper, then applied here; the
other brokers hear of them through /config/changes.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeVar

from klamm.apis.registry import Broker
from klamm.config import DEFAULT_BROKER, validate_broker_config, validate_topic_config
from klamm.config.loggers import check_level, set_level
from klamm.config_changes import BROKERS, TOPICS, Properties, change_config, read_configs
from klamm.errors import ErrorCode
from klamm.zk.ops import ZkError

log = logging.getLogger(__name__)


class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8


class Resource(NamedTuple):
    type: int
    name: str


class ApiError(Exception):
    """Why one resource of a request is refused; never leaves the handler."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


Outcome = tuple[ErrorCode, str | None]
R = TypeVar("R")
NO_ERROR: Outcome = (ErrorCode.NONE, None)
Change = Callable[[Properties], Properties]


def check_resource(broker: Broker, resource: Resource) -> None:
    """Raises when the resource is not there, or when another broker has to be asked."""
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


async def alter_each(
    resources: Sequence[R], key: Callable[[R], Resource], change: Callable[[R], Awaitable[Outcome]]
) -> list[tuple[Resource, Outcome]]:
    """Changes one resource after the other; one that is named twice is refused both times."""
    times = Counter(map(key, resources))
    outcomes: list[tuple[Resource, Outcome]] = []
    for resource in resources:
        if times[key(resource)] > 1:
            outcome: Outcome = ErrorCode.INVALID_REQUEST, "A resource may be named only once in a request."
        else:
            outcome = await change(resource)
        outcomes.append((key(resource), outcome))
    return outcomes


async def topic_overrides(broker: Broker, topics: list[str]) -> dict[str, Properties]:
    """What ZooKeeper holds for topics, also for those that this broker does not host."""
    return await read_configs(broker.zk, TOPICS, topics) if topics else {}


async def alter(broker: Broker, resource: Resource, change: Change, *, validate_only: bool) -> Outcome:
    """Changes the settings of a topic or broker: checked, written with a notification, applied here."""
    try:
        check_resource(broker, resource)
        if resource.type == ResourceType.TOPIC:
            await _alter_topic(broker, resource.name, change, validate_only)
        else:
            await _alter_broker(broker, resource.name, change, validate_only)
    except ApiError as error:
        return error.code, error.message
    except ZkError as error:
        log.warning("The configuration of %s cannot be changed: %s", resource.name, error)
        return ErrorCode.UNKNOWN_SERVER_ERROR, f"ZooKeeper did not accept the change: {error}"
    return NO_ERROR


async def _alter_topic(broker: Broker, topic: str, change: Change, validate_only: bool) -> None:
    def checked(before: Properties) -> Properties:
        after = change(before)
        if (problem := validate_topic_config(after)) is not None:
            raise ApiError(ErrorCode.INVALID_CONFIG, problem)
        return after

    if validate_only:
        checked((await read_configs(broker.zk, TOPICS, [topic]))[topic])
        return
    after = await change_config(broker.zk, TOPICS, topic, checked)
    broker.configs.set_topic(topic, after)


async def _alter_broker(broker: Broker, name: str, change: Change, validate_only: bool) -> None:
    entity = name or DEFAULT_BROKER

    def checked(before: Properties) -> Properties:
        after = change(dict(before))
        new = {key: value for key, value in after.items() if before.get(key) != value}
        problem = validate_broker_config(broker.config, new, per_broker=bool(name), current=before)
        if problem is not None:
            raise ApiError(ErrorCode.INVALID_REQUEST, problem)
        return after

    if validate_only:
        checked((await read_configs(broker.zk, BROKERS, [entity]))[entity])
        return
    after = await change_config(broker.zk, BROKERS, entity, checked)
    broker.configs.set_broker(entity, after)


def alter_loggers(
    broker: Broker, resource: Resource, levels: Mapping[str, str | None], *, validate_only: bool
) -> Outcome:
    """Sets levels of this process's loggers, all or none; they are not kept over a restart."""
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
