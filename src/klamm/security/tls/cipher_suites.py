"""Cipher suites: Java's names, which Kafka's settings use, as OpenSSL's. OpenSSL's own names pass unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

_TLS13_PREFIXES: Final = ("TLS_AES_", "TLS_CHACHA20_")


class Suites(NamedTuple):
    """`older` is OpenSSL's list for TLS 1.2. All suites of TLS 1.3 are on if one is named: Python cannot choose."""

    older: str
    has_tls13: bool


def openssl_suites(names: Sequence[str]) -> Suites:
    older = [_openssl_name(name) for name in names if not name.startswith(_TLS13_PREFIXES)]
    return Suites(":".join(older), any(name.startswith(_TLS13_PREFIXES) for name in names))


def _openssl_name(name: str) -> str:
    """`TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256` is OpenSSL's `ECDHE-RSA-AES128-GCM-SHA256`."""
    exchange, found, cipher = name.removeprefix("TLS_").partition("_WITH_")
    if not name.startswith("TLS_") or not found:
        return name
    cipher = cipher.replace("AES_128", "AES128").replace("AES_256", "AES256").replace("_CBC", "")
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    parts = [] if exchange == "RSA" else exchange.split("_")
    return "-".join([*parts, *cipher.split("_")])
