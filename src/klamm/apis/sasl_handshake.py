"""SaslHandshake (17): chooses a SASL mechanism.

v0-1: after v0 the client sends bare tokens, after v1 SaslAuthenticate requests. The network layer answers this request
where it begins an authentication (`network/gate.py`): before the first one, again while a session lasts
(`connections.max.reauth.ms`), and for the mechanism KLAMM-PEER, by which brokers prove their id. This handler receives
all others, which are out of place: ILLEGAL_SASL_STATE (34).
"""

from __future__ import annotations

from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext
from klamm.errors import ErrorCode
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


def handle(broker: Broker, ctx: RequestContext, req: SaslHandshakeRequest) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


API = Api(SaslHandshakeRequest, SaslHandshakeResponse, versions=(0, 1), plane=Plane.CONTROL, handle=handle)
