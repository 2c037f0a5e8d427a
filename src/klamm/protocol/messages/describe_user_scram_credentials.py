"""DescribeUserScramCredentials (key 50), version 0, always flexible.

Returns the SCRAM mechanisms of users, never the credentials themselves.
"""

from __future__ import annotations

from klamm.protocol.wire import (
    Array,
    Int8,
    Int16,
    Int32,
    Message,
    NullableArray,
    NullableString,
    String,
    Struct,
    message,
)


@message
class UserName(Struct):
    name: String


@message
class DescribeUserScramCredentialsRequest(Message):
    KEY = 50
    FLEXIBLE = 0
    VERSIONS = range(0, 1)

    users: NullableArray[UserName]


@message
class CredentialInfo(Struct):
    mechanism: Int8
    iterations: Int32


@message
class DescribeUserScramCredentialsResult(Struct):
    user: String
    error_code: Int16
    error_message: NullableString
    credential_infos: Array[CredentialInfo]


@message
class DescribeUserScramCredentialsResponse(Message):
    KEY = 50
    FLEXIBLE = 0
    VERSIONS = range(0, 1)

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: NullableString
    results: Array[DescribeUserScramCredentialsResult]
