"""ApiVersions (18): the APIs and versions of this broker, derived from the declarations of all APIs.

v0-4. A request of a higher version never reaches the handler: the network layer answers it in the format of v0, with
UNSUPPORTED_VERSION (35) and this API's range (KIP-511). From v3 on a client names its software, and a malformed name
gets INVALID_REQUEST (42). Features (KIP-584): `transaction.version` is supported up to 2, and 2 is finalized while all
brokers of the cluster speak KIP-890 part 2. Its lowest level is 0, and 1 for clients before v4, which cannot read a 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext
from klamm.coordinator.transaction.transaction_feature import NAME
from klamm.errors import ErrorCode
from klamm.model import TransactionVersion
from klamm.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

_api_keys: Final[list[ApiVersion]] = []
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(broker: Broker, ctx: RequestContext, req: ApiVersionsRequest) -> ApiVersionsResponse:
    if ctx.api_version >= 3:
        names = (req.client_software_name, req.client_software_version)
        if not all(_SOFTWARE.fullmatch(name) for name in names):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=())
        ctx.channel.client_software_name, ctx.channel.client_software_version = names
        ctx.channel.features_epoch = broker.features.finalized.epoch
    finalized = broker.features.finalized
    level = finalized.version
    lowest = 0 if ctx.api_version >= 4 else 1
    return ApiVersionsResponse(
        error_code=ErrorCode.NONE,
        api_keys=_api_keys,
        supported_features=[SupportedFeatureKey(name=NAME, min_version=lowest, max_version=TransactionVersion.TV_2)],
        finalized_features_epoch=finalized.epoch,
        finalized_features=[FinalizedFeatureKey(name=NAME, max_version_level=level, min_version_level=level)]
        if level
        else (),
    )


def advertise(apis: Iterable[Api[Any, Any]]) -> None:
    """Set the APIs of the response; `klamm.apis` calls it with all of them, this one included."""
    _api_keys[:] = [
        ApiVersion(api_key=api.key, min_version=api.versions[0], max_version=api.versions[1])
        for api in sorted(apis, key=lambda api: api.key)
    ]


API = Api(ApiVersionsRequest, ApiVersionsResponse, versions=(0, 4), plane=Plane.DATA, handle=handle, is_read=True)
