"""Control requests, encoded and converted without other work between the steps."""

from __future__ import annotations

from klamm.apis.api_declaration import at_once
from klamm.apis.update_metadata import in_slices
from klamm.controller.config import InterBrokerProtocol
from klamm.controller.control_wire import Encoded, encode_in_steps
from klamm.controller.requests import ControlRequest
from klamm.metadata.update import MetadataUpdate
from klamm.protocol.messages.update_metadata import UpdateMetadataRequest


def encode_request(request: ControlRequest, protocol: InterBrokerProtocol) -> Encoded:
    """Encode a control request as the controller sends it."""
    return at_once(encode_in_steps(request, protocol))


def to_update(version: int, request: UpdateMetadataRequest, client_id: str | None = None) -> MetadataUpdate:
    """Convert a received request as a broker does."""
    return at_once(in_slices(version, request, client_id))
