"""The common part of the config APIs: which resources this broker may answer for, and how they change.

A topic is answered by every broker, a broker's settings by that broker only; the empty broker name means the defaults
of all brokers, which every broker can change. Settings are read from and written to ZooKeeper, then applied here; the
other brokers are notified through /config/changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from klamm.apis.access import may, may_on_cluster
from klamm.apis.api_declaration import Broker, RequestContext
from klamm.config import DEFAULT_BROKER, validate_broker_config, validate_topic_config
from klamm.config.loggers import check_level, set_level
from klamm.config_changes import BROKERS, TOPICS, Properties, change_config, read_configs
from klamm.errors import ErrorCode
from klamm.protocol.chunked import ChunkedList
from klamm.security.acl.bindings import AclOperation
from klamm.security.acl.bindings import ResourceType as AclResourceType
from klamm.zk.model.ops import ZkError

log = logging.getLogger(__name__)

READ_WAIT_S: Final = 1.0
CHANGE_WAIT_S: Final = 5.0
"""Maximum wait for ZooKeeper. These requests carry no timeout, and clients give up after 30 s."""

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


class ApiError(Exception):
    """Refusal of one resource of a request; never leaves the handler."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


Outcome = tuple[ErrorCode, str | None]
R = TypeVar("R", bound=NamedResource)
A = TypeVar("A")
NO_ERROR: Outcome = (ErrorCode.NONE, None)
Change = Callable[[Properties], Properties]


def check_access(broker: Broker, ctx: RequestContext, resource: Resource, operation: AclOperation) -> None:
    """Raise if the client may not see or change the resource. One of an unknown type is refused later."""
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


async def alter_each(
    ctx: RequestContext,
    resources: Sequence[R],
    change: Callable[[R], Coroutine[Any, Any, Outcome]],
    answer: Callable[..., A],
) -> Sequence[A]:
    """Change one resource after the other; a resource that is named twice is refused both times.

    After a timeout of ZooKeeper the rest is not tried.
    """
    times: Counter[Resource] = Counter()
    ctx.hold(times)
    for start in range(0, len(resources), _SLICE):
        times.update(map(key_of, resources[start : start + _SLICE]))
        await asyncio.sleep(0)
    answers: ChunkedList[A] = ChunkedList()
    is_late = False
    for resource in resources:
        key = key_of(resource)
        if times[key] > 1:
            outcome: Outcome = ErrorCode.INVALID_REQUEST, "A resource may be named only once in a request."
        elif is_late:
            outcome = ErrorCode.REQUEST_TIMED_OUT, "Not tried: ZooKeeper does not answer."
        else:
            outcome = await in_time(change(resource))
            is_late = outcome[0] == ErrorCode.REQUEST_TIMED_OUT
        code, message = outcome
        if len(answers) % _SLICE == _SLICE - 1:
            await asyncio.sleep(0)
        answers.append(answer(error_code=code, error_message=message, resource_type=key.type, resource_name=key.name))
    return answers


def check_count(configs: Sequence[object]) -> None:
    if len(configs) > MAX_CONFIGS:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"More than {MAX_CONFIGS} settings are changed for a resource.")


async def in_time(change: Coroutine[Any, Any, Outcome]) -> Outcome:
    """A change that takes too long continues by itself: a write to ZooKeeper cannot be undone."""
    task = asyncio.ensure_future(change)
    done, _ = await asyncio.wait({task}, timeout=CHANGE_WAIT_S)
    if not done:
        return ErrorCode.REQUEST_TIMED_OUT, "ZooKeeper does not answer; the change may yet be made."
    return task.result()


async def topic_overrides(broker: Broker, topics: list[str]) -> dict[str, Properties]:
    """Read the configurations of topics from ZooKeeper, also of those that this broker does not host.

    While ZooKeeper is unreachable, the settings that this broker applied last are returned.
    """
    try:
        async with asyncio.timeout(READ_WAIT_S):
            return await read_configs(broker.zk, TOPICS, topics)
    except (ZkError, TimeoutError):
        return {topic: dict(broker.configs.topic_overrides(topic)) for topic in topics}


async def alter(broker: Broker, resource: Resource, change: Change, *, validate_only: bool) -> Outcome:
    """Change the settings of a topic or broker: check, write with a notification, apply here."""
    try:
        check_resource(broker, resource)
        if resource.type == ResourceType.TOPIC:
            await _alter_topic(broker, resource.name, change, validate_only)
        else:
            await _alter_broker(broker, resource.name, change, validate_only)
    except ApiError as error:
        return error.code, error.message
    except ZkError as error:
        log.warning("changing the configuration of %s failed: %s", resource.name, error)
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
        if problem is None and name:
            problem = broker.configs.file_problem(new)
        if problem is not None:
            raise ApiError(ErrorCode.INVALID_REQUEST, problem)
        return after

    if validate_only:
        checked((await read_configs(broker.zk, BROKERS, [entity]))[entity])
        return
    after = await change_config(broker.zk, BROKERS, entity, checked)
    broker.configs.set_broker(entity, after)
    if name:
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
