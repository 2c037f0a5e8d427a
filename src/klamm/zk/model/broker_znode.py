"""/brokers/ids/ID: the addresses of a broker. Versions 1 to 5 are read, 4 and 5 are written.

klamm adds one key, which Kafka ignores: a broker whose last run did not stop cleanly reports it, since its logs may
have lost their unflushed tails. The controller removes the key when no ISR depends on such a log any longer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from klamm.errors import shown
from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import BrokerEndPoints, EndPoint, SecurityProtocol
from klamm.zk.model import paths
from klamm.zk.model.znodes import ZnodeFormatError, from_json, int32, parse, to_json

UNCLEAN_SHUTDOWN: Final = "klamm_unclean_shutdown"
_MAX_PORT: Final = 65535
_MAX_STRING_BYTES: Final = 0x7FFF
_ENDPOINT: Final = re.compile(r"(?P<listener>[^:/]+)://(?:\[(?P<v6>[^]]*)\]|(?P<host>[^\[\]]*)):(?P<port>-?\d+)")


@lazy_dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A registration: the broker, and the data that only its znode has."""

    broker: BrokerEndPoints
    version: int = 5
    jmx_port: int = -1
    unclean_shutdown: bool = False


def encode_broker(
    broker: BrokerEndPoints,
    timestamp_ms: int,
    *,
    version: int = 5,
    jmx_port: int = -1,
    unclean_shutdown: bool = False,
) -> bytes:
    """Encode version 5 from inter-broker protocol 2.7 on, version 4 before.

    Host and port repeat the PLAINTEXT endpoint.
    """
    plain = next((e for e in broker.endpoints if e.security_protocol == SecurityProtocol.PLAINTEXT), None)
    value: dict[str, Any] = {"features": {}} if version >= 5 else {}
    value |= {
        "listener_security_protocol_map": {e.listener: e.security_protocol.name for e in broker.endpoints},
        "endpoints": [_encode_endpoint(e) for e in broker.endpoints],
        "jmx_port": jmx_port,
        "port": -1 if plain is None else plain.port,
        "host": None if plain is None else plain.host,
        "version": version,
    }
    if broker.rack is not None:
        value["rack"] = broker.rack
    if unclean_shutdown:
        value[UNCLEAN_SHUTDOWN] = True
    return to_json(value | {"timestamp": str(timestamp_ms)})


def without_unclean_shutdown(broker_id: int, data: bytes | None) -> bytes:
    """Return the same registration without the report of an unclean shutdown; unknown keys are kept."""
    value = from_json(paths.broker_path(broker_id), data)
    return to_json({key: each for key, each in value.items() if key != UNCLEAN_SHUTDOWN})


def _encode_endpoint(endpoint: EndPoint) -> str:
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{endpoint.listener}://{host}:{endpoint.port}"


def decode_broker(broker_id: int, data: bytes | None, epoch: int) -> BrokerInfo:
    """Decode a registration; `epoch` is the czxid of the znode.

    Two endpoints of one listener raise ZnodeFormatError too.
    """
    path = paths.broker_path(broker_id)
    value = from_json(path, data)

    def build() -> BrokerInfo:
        version = int(value["version"])
        if version < 1:
            raise ZnodeFormatError(path, f"version {version} of a broker registration does not exist")
        endpoints = _endpoints(path, version, value)
        rack = value.get("rack")
        broker = BrokerEndPoints(broker_id, endpoints, None if rack is None else _text(rack), epoch)
        return BrokerInfo(broker, version, int(value.get("jmx_port", -1)), value.get(UNCLEAN_SHUTDOWN) is True)

    return parse(path, build)


def _endpoints(path: str, version: int, value: Mapping[str, Any]) -> tuple[EndPoint, ...]:
    if version == 1:
        return (EndPoint("PLAINTEXT", _text(value["host"]), _port(value["port"])),)
    protocols = value.get("listener_security_protocol_map") or {}
    endpoints = tuple(_decode_endpoint(path, _text(text), protocols) for text in value["endpoints"])
    if len({e.listener for e in endpoints}) != len(endpoints):
        raise ZnodeFormatError(path, "two endpoints have the same listener name")
    return endpoints


def _decode_endpoint(path: str, text: str, protocols: Mapping[str, str]) -> EndPoint:
    match = _ENDPOINT.fullmatch(text)
    if match is None:
        raise ZnodeFormatError(path, f"endpoint {shown(text)} is not listener://host:port")
    listener = match["listener"].upper()
    protocol = protocols.get(listener) or protocols.get(match["listener"]) or listener
    if protocol not in SecurityProtocol.__members__:
        raise ZnodeFormatError(path, f"listener {listener} has no security protocol")
    host = match["v6"] if match["v6"] is not None else match["host"]
    return EndPoint(listener, host, _port(match["port"]), SecurityProtocol[protocol])


def _port(value: Any) -> int:
    """Return a port; -1 is that of a broker without one."""
    port = int32(value, -1)
    if port > _MAX_PORT:
        raise ValueError(f"{port} is not a port")
    return port


def _text(value: object) -> str:
    """Return a text that fits into the brokers' messages. A longer one would prevent all of them from being sent."""
    text = str(value)
    if len(text.encode()) > _MAX_STRING_BYTES:
        raise ValueError(f"{shown(text)} is longer than {_MAX_STRING_BYTES} bytes")
    return text
