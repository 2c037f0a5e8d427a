"""MetadataCache: who waits for a broker is called once, within the update that knows it."""

from __future__ import annotations

from klamm.metadata import MetadataCache
from klamm.metadata.update import MetadataUpdate
from klamm.model import BrokerEndPoints


def alive(*broker_ids: int) -> MetadataUpdate:
    return MetadataUpdate(1, 1, tuple(BrokerEndPoints(broker_id, ()) for broker_id in broker_ids), ())


def test_waiting_for_a_broker() -> None:
    cache = MetadataCache(1)
    heard: list[str] = []
    cache.when_alive(1, lambda: heard.append("first"))
    cache.when_alive(2, lambda: heard.append("second"))
    cache.update(alive(2))
    assert heard == ["second"]
    cache.update(alive(1, 2))
    cache.update(alive(1, 2))
    assert heard == ["second", "first"]
    cache.when_alive(1, lambda: heard.append("at once"))
    assert heard[-1] == "at once"
