"""AlterUserScramCredentials (key 51), version 0, always flexible.

Adds, changes or removes SCRAM credentials.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Bytes, Int8, Int16, Int32, Message, NullableString, String, Struct, message


@message
class ScramCredentialDeletion(Struct):
    name: String
    mechanism: Int8


@message
class ScramCredentialUpsertion(Struct):
    name: String
    mechanism: Int8
    iterations: Int32
    salt: Bytes
    salted_password: Bytes


@message
class AlterUserScramCredentialsRequest(Message):
    KEY = 51
    FLEXIBLE = 0
    VERSIONS = range(0, 1)

    deletions: Array[ScramCredentialDeletion]
    upsertions: Array[ScramCredentialUpsertion]


@message
class AlterUserScramCredentialsResult(Struct):
    user: String
    error_code: Int16
    error_message: NullableString


@message
class AlterUserScramCredentialsResponse(Message):
    KEY = 51
    FLEXIBLE = 0
    VERSIONS = range(0, 1)

    throttle_time_ms: Int32 = 0
    results: Array[AlterUserScramCredentialsResult]
