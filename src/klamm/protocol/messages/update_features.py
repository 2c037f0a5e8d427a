"""UpdateFeatures (key 57), versions 0-1, always flexible.

Raises or lowers the finalized levels of cluster features.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Bool, Int8, Int16, Int32, Message, NullableString, String, Struct, message, since


@message
class FeatureUpdateKey(Struct):
    feature: String
    max_version_level: Int16
    allow_downgrade: Bool = since(0, until=0, default=False)
    upgrade_type: Int8 = since(1, default=1)


@message
class UpdateFeaturesRequest(Message):
    KEY = 57
    FLEXIBLE = 0
    VERSIONS = range(0, 2)

    timeout_ms: Int32 = 60000
    feature_updates: Array[FeatureUpdateKey]
    validate_only: Bool = since(1, default=False)


@message
class UpdatableFeatureResult(Struct):
    feature: String
    error_code: Int16
    error_message: NullableString


@message
class UpdateFeaturesResponse(Message):
    KEY = 57
    FLEXIBLE = 0
    VERSIONS = range(0, 2)

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: NullableString
    results: Array[UpdatableFeatureResult]
