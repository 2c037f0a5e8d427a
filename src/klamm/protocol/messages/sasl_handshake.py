"""SaslHandshake (key 17), versions 0-1, never flexible.

Chooses a SASL mechanism. With v1 the exchange continues in SaslAuthenticate requests.
"""

from __future__ import annotations

from klamm.protocol.wire import Array, Int16, Message, String, message


@message
class SaslHandshakeRequest(Message):
    KEY = 17
    VERSIONS = range(0, 2)

    mechanism: String


@message
class SaslHandshakeResponse(Message):
    KEY = 17
    VERSIONS = range(0, 2)

    error_code: Int16
    mechanisms: Array[String] = ()
