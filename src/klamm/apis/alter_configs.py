"""AlterConfigs (33): replaces all settings of a topic, of this broker or of the brokers' defaults.

v0-2: only the encoding changes. Keys that the request does not name return to their defaults. A bad topic setting is
INVALID_CONFIG (40); a broker key that cannot change while it runs, a bad broker value, a missing value and a resource
named twice are INVALID_REQUEST (42). Loggers are changed by IncrementalAlterConfigs only. If ZooKeeper does not answer
within seconds, the answer is REQUEST_TIMED_OUT (7); the change may still take effect.
"""

from __future__ import annotations

import asyncio

from klamm.apis.api_declaration import Answer, Api, Broker, Plane, RequestContext
from klamm.apis.config_resources import (
    ResourceType,
    alter,
    alter_each,
    check_access,
    check_count,
    key_of,
)
from klamm.apis.zookeeper_waits import ApiError, Outcome
from klamm.config_changes import Properties
from klamm.errors import ErrorCode
from klamm.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from klamm.security.acl.bindings import AclOperation
from klamm.waiting import Steps, begin


def handle(broker: Broker, ctx: RequestContext, req: AlterConfigsRequest) -> Answer[AlterConfigsResponse]:
    return begin(_alter_all(broker, ctx, req))


def _alter_all(broker: Broker, ctx: RequestContext, req: AlterConfigsRequest) -> Steps[AlterConfigsResponse]:
    responses = yield from alter_each(
        ctx,
        req.resources,
        lambda resource: _alter(broker, ctx, resource, req.validate_only),
        AlterConfigsResourceResponse,
    )
    return AlterConfigsResponse(throttle_time_ms=0, responses=responses)


def _alter(
    broker: Broker, ctx: RequestContext, resource: AlterConfigsResource, validate_only: bool
) -> Outcome | asyncio.Future[Outcome]:
    if resource.resource_type == ResourceType.BROKER_LOGGER:
        return ErrorCode.INVALID_REQUEST, "Levels of loggers are changed by IncrementalAlterConfigs."
    try:
        check_count(resource.configs)
        check_access(broker, ctx, key_of(resource), AclOperation.ALTER_CONFIGS)
    except ApiError as error:
        return error.code, error.message
    if (empty := next((c.name for c in resource.configs if c.value is None), None)) is not None:
        return ErrorCode.INVALID_REQUEST, f"{empty} has no value."
    wanted: Properties = {config.name: config.value for config in resource.configs if config.value is not None}
    if len(wanted) < len(resource.configs):
        return ErrorCode.INVALID_REQUEST, "A key may be named only once for a resource."
    return alter(broker, key_of(resource), lambda before: dict(wanted), validate_only=validate_only)


API = Api(AlterConfigsRequest, AlterConfigsResponse, versions=(0, 2), plane=Plane.DATA, handle=handle)
