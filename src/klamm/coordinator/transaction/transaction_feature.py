"""The level of the feature `transaction.version`: the highest that every live broker supports.

There is no vote: each broker finds out by itself what the others speak. A broker that is not known to speak the
repaired protocol (KIP-890 part 2) turns it off, so a broker of Apache Kafka 3.9 that joins does so before it can lead a
partition.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import TransactionVersion

NAME: Final = "transaction.version"


@lazy_dataclass(frozen=True, slots=True)
class FinalizedLevel:
    """`epoch` grows with each change; clients use the answer with the highest epoch."""

    version: TransactionVersion = TransactionVersion.TV_0
    epoch: int = 0


class TransactionFeature:
    """Owner of the finalised level. `max_version` is the highest level that this broker's configuration allows."""

    def __init__(self, max_version: TransactionVersion = TransactionVersion.TV_0) -> None:
        self.max_version = max_version
        self.finalized = FinalizedLevel()
        self._capable: dict[int, None] = {}

    @property
    def version(self) -> TransactionVersion:
        return self.finalized.version

    def set_capable(self, broker_id: int, *, is_capable: bool) -> None:
        """Record whether a broker speaks the repaired protocol."""
        if is_capable:
            self._capable[broker_id] = None
        else:
            self._capable.pop(broker_id, None)

    def unknown(self, live_brokers: Collection[int]) -> list[int]:
        """Return the live brokers that are not known to speak the repaired protocol."""
        return [broker_id for broker_id in live_brokers if broker_id not in self._capable]

    def decide(self, live_brokers: Collection[int], now_ms: int) -> None:
        """Finalise the level for these brokers. Brokers that have left must prove their protocol again."""
        for broker_id in [broker_id for broker_id in self._capable if broker_id not in live_brokers]:
            del self._capable[broker_id]
        is_repaired = bool(live_brokers) and not self.unknown(live_brokers)
        version = self.max_version if is_repaired else TransactionVersion.TV_0
        if version is not self.version:
            # Wall clocks order the changes of several brokers well enough: the older answer is out of date anyway.
            self.finalized = FinalizedLevel(version, max(self.finalized.epoch + 1, now_ms))
