"""DescribeConfigs (32): the effective values of topics, brokers and loggers, and their sources.

v0-4: sources and synonyms v1 (v0 has a flag for defaults that Kafka never sets); types and documentation v3, the latter
only when asked for. A topic shows its overrides above the broker's values and defaults (retention.ms, then
log.retention.ms, .minutes, .hours). A broker answers for itself (all keys), for the empty name (the dynamic defaults of
all brokers) and, as BROKER_LOGGER, for the levels of its loggers. Another broker's name is INVALID_REQUEST (42), an
unknown topic UNKNOWN_TOPIC_OR_PARTITION (3), an invalid topic name INVALID_TOPIC_EXCEPTION (17). A resource that is
named several times is described once. While ZooKeeper does not answer, the overrides are those that this broker applied
last. Left out: CLIENT_METRICS (16) and GROUP (32), which are INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.config_resources import (
    Resource,
    ResourceType,
    check_access,
    check_resource,
    key_of,
    topic_overrides,
)
from klamm.apis.slices import each
from klamm.apis.zookeeper_waits import NO_ERROR, ApiError, Outcome
from klamm.config import ConfigType
from klamm.config.entries import (
    ConfigEntry,
    ConfigSource,
    broker_entries,
    default_broker_entries,
    topic_entries,
)
from klamm.config.loggers import logger_levels
from klamm.config_changes import Properties
from klamm.controller.topic_validation import validate_topic_name
from klamm.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from klamm.security.acl.bindings import AclOperation
from klamm.waiting import Steps, begin, result_of

_RESOURCES_PER_SLICE: Final = 1
"""Resources per slice: all keys of a broker take a few milliseconds."""


def handle(broker: Broker, ctx: RequestContext, req: DescribeConfigsRequest) -> Answer[DescribeConfigsResponse]:
    return begin(_answer(broker, ctx, req))


def _answer(broker: Broker, ctx: RequestContext, req: DescribeConfigsRequest) -> Steps[DescribeConfigsResponse]:
    resources: dict[Resource, DescribeConfigsResource] = {}
    ctx.hold(resources)
    yield from each(req.resources, lambda resource: _merge(resources, resource))
    known: list[str] = []
    refused: dict[Resource, Outcome] = {}
    ctx.hold(refused)

    def check(resource: Resource) -> None:
        """Only topics that the client may see are read: reading takes time, which would show that others exist."""
        try:
            check_access(broker, ctx, resource, AclOperation.DESCRIBE_CONFIGS)
        except ApiError as error:
            refused[resource] = error.code, error.message
        else:
            if resource.type == ResourceType.TOPIC and broker.metadata.contains(resource.name):
                known.append(resource.name)

    yield from each(tuple(resources), check)
    overrides = (yield from result_of(topic_overrides(broker, known))) if known else {}
    return (yield from _response(broker, req, resources, refused, overrides))


def _merge(resources: dict[Resource, DescribeConfigsResource], asked: DescribeConfigsResource) -> None:
    """Collect each resource once, with the keys of all mentions: otherwise a short request could exhaust the memory."""
    known = resources.setdefault(key_of(asked), asked)
    keys = known.configuration_keys
    if known is asked or not keys:
        return
    if not asked.configuration_keys:
        known.configuration_keys = asked.configuration_keys
        return
    merged = keys if type(keys) is list else list(keys)  # not copied at each of a million mentions
    merged.extend(asked.configuration_keys)
    known.configuration_keys = merged


def _response(
    broker: Broker,
    req: DescribeConfigsRequest,
    resources: dict[Resource, DescribeConfigsResource],
    refused: dict[Resource, Outcome],
    overrides: dict[str, Properties],
) -> Steps[DescribeConfigsResponse]:
    results = yield from each(
        resources.items(),
        lambda item: _result(broker, req, item[1], refused.get(item[0]), overrides),
        _RESOURCES_PER_SLICE,
    )
    return DescribeConfigsResponse(throttle_time_ms=0, results=results)


def _result(
    broker: Broker,
    req: DescribeConfigsRequest,
    resource: DescribeConfigsResource,
    refusal: Outcome | None,
    overrides: dict[str, Properties],
) -> DescribeConfigsResult:
    code, message = NO_ERROR if refusal is None else refusal
    configs: list[DescribeConfigsResourceResult] = []
    if refusal is None:
        try:
            invalid = (
                validate_topic_name(resource.resource_name) if resource.resource_type == ResourceType.TOPIC else None
            )
            if invalid is not None:
                raise ApiError(invalid.error, invalid.message)
            check_resource(broker, Resource(resource.resource_type, resource.resource_name))
            configs = [_entry(entry, req) for entry in _entries(broker, resource, overrides)]
        except ApiError as error:
            code, message = error.code, error.message
    return DescribeConfigsResult(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=configs,
    )


def _entries(
    broker: Broker, resource: DescribeConfigsResource, overrides: dict[str, Properties]
) -> Iterable[ConfigEntry]:
    names = resource.configuration_keys or None
    if resource.resource_type == ResourceType.TOPIC:
        return topic_entries(broker.configs, overrides.get(resource.resource_name, {}), names)
    if resource.resource_type == ResourceType.BROKER_LOGGER:
        return _logger_entries(names)
    if not resource.resource_name:
        return default_broker_entries(broker.configs, names)
    return broker_entries(broker.configs, names)


def _logger_entries(names: Iterable[str] | None) -> Iterator[ConfigEntry]:
    wanted = None if names is None else frozenset(names)
    for name, level in logger_levels().items():
        if wanted is None or name in wanted:
            source = ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
            yield ConfigEntry(name, level, source, False, False, (), ConfigType.STRING, "The level of this logger.")


def _entry(entry: ConfigEntry, req: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = [
        DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
        for synonym in (entry.synonyms if req.include_synonyms else ())
    ]
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        is_default=False,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=synonyms,
        config_type=entry.kind,
        documentation=entry.documentation if req.include_documentation else None,
    )


API = Api(
    DescribeConfigsRequest, DescribeConfigsResponse, versions=(0, 4), plane=Plane.DATA, handle=handle, is_read=True
)
