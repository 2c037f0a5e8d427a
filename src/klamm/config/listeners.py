"""Parses `listeners` and similar keys into endpoints.

`NAME://host:port`, separated by commas; an empty host means every address, `[::1]` is IPv6, port 0 takes a free port.
Errors raise ValueError; the configuration adds the name of the key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from klamm.model import EndPoint, SecurityProtocol

_LISTENER: Final = re.compile(r"([A-Za-z0-9_.-]+)://(\[[0-9a-fA-F:.%]*\]|[^\[\]/:,\s]*):(-?[0-9]+)")


def parse_protocol_map(text: str) -> dict[str, SecurityProtocol]:
    """Parse `NAME:PROTOCOL,...`. Listener names become upper case, as in Kafka."""
    protocols: dict[str, SecurityProtocol] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = item.rpartition(":")
        if not colon or not name or protocol.strip().upper() not in SecurityProtocol.__members__:
            known = ", ".join(SecurityProtocol.__members__)
            raise ValueError(f"NAME:PROTOCOL with a protocol of {known}, but {item!r} is not that")
        protocols[name.strip().upper()] = SecurityProtocol[protocol.strip().upper()]
    return protocols


def parse_listeners(text: str, protocols: Mapping[str, SecurityProtocol]) -> tuple[EndPoint, ...]:
    """Parse the listeners.

    Names and ports other than 0 must be unique, and each name must have a protocol.
    """
    endpoints = tuple(_parse_listener(part.strip(), protocols) for part in text.split(",") if part.strip())
    if not endpoints:
        raise ValueError("at least one listener, such as PLAINTEXT://localhost:9092")
    names = [endpoint.listener for endpoint in endpoints]
    if len(set(names)) != len(names):
        raise ValueError("every listener name only once")
    bound = [(endpoint.host, endpoint.port) for endpoint in endpoints if endpoint.port != 0]
    if len(set(bound)) != len(bound):
        raise ValueError("every host and port only once")
    return endpoints


def _parse_listener(text: str, protocols: Mapping[str, SecurityProtocol]) -> EndPoint:
    found = _LISTENER.fullmatch(text)
    if found is None:
        raise ValueError(f"NAME://host:port, separated by commas, but {text!r} is not that")
    name, host, port = found[1].upper(), found[2].strip("[]"), int(found[3])
    if not 0 <= port <= 65535:
        raise ValueError(f"a port from 0 to 65535, but {text!r} has {port}")
    protocol = protocols.get(name)
    if protocol is None:
        raise ValueError(f"a listener name that listener.security.protocol.map knows, but {name} is not in it")
    return EndPoint(name, host, port, protocol)
