"""SaslAuthenticate (key 36), versions 0-2, flexible from 2.

One step of a SASL exchange, as opaque bytes.
"""

from __future__ import annotations

from klamm.protocol.wire import Bytes, Int16, Int64, Message, NullableString, message, since


@message
class SaslAuthenticateRequest(Message):
    KEY = 36
    FLEXIBLE = 2
    VERSIONS = range(0, 3)

    auth_bytes: Bytes


@message
class SaslAuthenticateResponse(Message):
    KEY = 36
    FLEXIBLE = 2
    VERSIONS = range(0, 3)

    error_code: Int16
    error_message: NullableString
    auth_bytes: Bytes
    session_lifetime_ms: Int64 = since(1, default=0)
