"""SaslAuthenticate (36): one step of a SASL exchange.

v0-2: v1 adds the lifetime of the session, v2 is flexible. The network layer answers this request during an exchange
(`network/gate.py`). This handler receives only requests that no SaslHandshake announced: ILLEGAL_SASL_STATE (34).
"""

from __future__ import annotations

from klamm.apis.api_declaration import Api, Broker, Plane, RequestContext
from klamm.errors import ErrorCode
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse


def handle(broker: Broker, ctx: RequestContext, req: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
        auth_bytes=b"",
    )


API = Api(SaslAuthenticateRequest, SaslAuthenticateResponse, versions=(0, 2), plane=Plane.CONTROL, handle=handle)
