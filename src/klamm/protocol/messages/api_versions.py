"""ApiVersions (key 18), versions 0-4, flexible from 3.

The supported APIs and versions. Its response always has a header of version 0, and a request of an unknown version is
answered in v0.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Bool, Int16, Int32, Int64, Message, String, Struct, message, since


@message
class ApiVersionsRequest(Message):
    KEY = 18
    FLEXIBLE = 3
    VERSIONS = range(0, 5)

    client_software_name: String = since(3, default="")
    client_software_version: String = since(3, default="")


@message
class ApiVersion(Struct):
    api_key: Int16
    min_version: Int16
    max_version: Int16


@message
class SupportedFeatureKey(Struct):
    name: String
    min_version: Int16
    max_version: Int16


@message
class FinalizedFeatureKey(Struct):
    name: String
    max_version_level: Int16
    min_version_level: Int16


@message
class ApiVersionsResponse(Message):
    KEY = 18
    FLEXIBLE = 3
    VERSIONS = range(0, 5)

    error_code: Int16
    api_keys: Array[ApiVersion]
    throttle_time_ms: Int32 = since(1, default=0)
    supported_features: Array[SupportedFeatureKey] = since(3, tag=0, default=())
    finalized_features_epoch: Int64 = since(3, tag=1, default=-1)
    finalized_features: Array[FinalizedFeatureKey] = since(3, tag=2, default=())
    zk_migration_ready: Bool = since(3, tag=3, default=False)
