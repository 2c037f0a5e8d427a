"""A reserved port belongs to us until we give it up, and the server it was meant for can still have it."""

from __future__ import annotations

import asyncio
import socket

import pytest

from klamm.local.ports import LOOPBACK, ReservedPort


def test_the_server_it_was_reserved_for_can_bind_it_again_and_again() -> None:
    async def serve_once(port: int) -> None:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), LOOPBACK, port)
        with socket.create_connection((LOOPBACK, port), 5):
            pass
        server.close()
        await server.wait_closed()

    with ReservedPort() as port:
        for _ in range(3):
            asyncio.run(serve_once(port.number))


def test_the_port_is_closed_before_the_server_listens() -> None:
    with ReservedPort() as port, pytest.raises(ConnectionRefusedError):
        socket.create_connection((LOOPBACK, port.number), 5)


def test_a_port_in_use_is_refused() -> None:
    with socket.create_server((LOOPBACK, 0)) as server, pytest.raises(OSError, match="in use"):
        ReservedPort(server.getsockname()[1])


def test_a_reserved_port_is_not_given_to_others() -> None:
    with ReservedPort() as port:
        others = [ReservedPort() for _ in range(200)]
        try:
            assert port.number not in {other.number for other in others}
        finally:
            for other in others:
                other.close()
