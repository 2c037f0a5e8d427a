"""Addresses as users write them."""

from __future__ import annotations

import pytest

from klamm.model import parse_host_port


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:9092", ("localhost", 9092)),
        (" 127.0.0.1:1 ", ("127.0.0.1", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("PLAINTEXT://b1.example.org:9092", ("b1.example.org", 9092)),
    ],
)
def test_hosts_with_ports(text: str, address: tuple[str, int]) -> None:
    assert parse_host_port(text) == parse_host_port(text, 2181) == address


@pytest.mark.parametrize("text", ["localhost", "[::1]", "a:", "PLAINTEXT://a"])
def test_a_missing_port_needs_a_default(text: str) -> None:
    assert parse_host_port(text, 2181)[1] == 2181
    with pytest.raises(ValueError, match="is not an address: expected host:port"):
        parse_host_port(text)


@pytest.mark.parametrize("text", ["", ":9092", "a:b", "a:0", "a:65536", "a:-1", "a:\u0661", "[::1]:x"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address: expected host:port"):
        parse_host_port(text)
