"""Questions to every broker of a cluster: those that do not answer are named, and do not hide the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from klamm.client.client_errors import ClientError, RetriableError
from klamm.client.cluster_client import ClusterClient
from klamm.protocol.wire import Message

R = TypeVar("R", bound=Message)


def ask_any(client: ClusterClient, what: str, request: Message, answer: type[R]) -> R:
    """Ask any broker that answers. Raises ClientError after the deadline."""
    return client.retry(what, lambda: client.any_broker().ask(request, answer))


def ask_each(
    client: ClusterClient, request: Message, answer: type[R], check: Callable[[R], None] = lambda _: None
) -> tuple[dict[int, R], list[str]]:
    """Ask every live broker once; return the answers by broker id, and a sentence per broker without one.

    `check` raises RetriableError or ClientError for an answer that is an error.
    """
    client.metadata(())
    found: dict[int, R] = {}
    problems: list[str] = []
    for broker_id, address in sorted(client.addresses().items()):
        try:
            reply = client.connection(address).ask(request, answer)
            check(reply)
            found[broker_id] = reply
        except (OSError, RetriableError, ClientError) as error:
            problems.append(f"Broker {broker_id} does not answer: {error}")
    return found, problems
