"""Imports the libraries of security in a thread while a broker starts: the first connection must not wait for them."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterable

from klamm.config import KafkaConfig
from klamm.security.client_security import SASL, TLS


def needed_modules(config: KafkaConfig) -> tuple[str, ...]:
    """Return the modules that connections need: SCRAM always, because brokers prove their id with it."""
    protocols = {endpoint.security_protocol for endpoint in config.endpoints}
    tls = ("aiofastnet", "cryptography.x509") if protocols & TLS else ()
    tokens = ("joserfc.jwt", "joserfc.jwk") if protocols & SASL else ()
    return ("scramp", *tls, *tokens)


def preload(config: KafkaConfig) -> asyncio.Future[None]:
    return asyncio.get_running_loop().run_in_executor(None, _import_all, needed_modules(config))


def _import_all(names: Iterable[str]) -> None:
    for name in names:
        importlib.import_module(name)
