"""The rights that `klamm cluster status` needs, and the effects of their lack."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from klamm.client.missing_rights import MissingRight
    from klamm.clock import Clock

_KEPT_S: Final = 60.0
_EFFECTS: Final = {
    ("DESCRIBE", "TOPIC"): "topics without this right are neither shown nor counted",
    ("DESCRIBE_CONFIGS", "TOPIC"): "min.insync.replicas is not known, so partitions under min ISR are not found",
    ("DESCRIBE", "CLUSTER"): (
        "moves of replicas and offline log directories are not known; replicas that moves add count as out of sync"
    ),
    ("DESCRIBE_CONFIGS", "CLUSTER"): "the addresses of metrics and of ZooKeeper are not known, so neither was asked",
}


def effect(right: MissingRight) -> str:
    """Return what the status does not show without this right."""
    return _EFFECTS[right.operation.name, right.resource_type.name]


def lacks(missing: Iterable[MissingRight], operation: str, kind: str) -> bool:
    """Whether the right to the operation on this type of resource is among the missing ones."""
    return any((right.operation.name, right.resource_type.name) == (operation, kind) for right in missing)


class RightsMemory:
    """Keeps the rights that a user lacks for a while: a view that is open for hours does not ask for them each time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._missing: list[MissingRight] | None = None
        self._until_s = 0.0

    @property
    def missing(self) -> list[MissingRight] | None:
        """The missing rights; None if they must be asked for."""
        return self._missing if self._clock.monotonic() < self._until_s else None

    def keep(self, missing: list[MissingRight]) -> None:
        if self.missing is None:
            self._missing, self._until_s = missing, self._clock.monotonic() + _KEPT_S


def ask_missing_rights(
    address: tuple[str, int], broker_id: int, knows_topics: bool, timeout_s: float
) -> list[MissingRight]:
    """Ask a broker which rights the user lacks. With `knows_topics`, it has the settings of all topics that it sees."""
    from klamm.cli.broker_requests import connect
    from klamm.client.missing_rights import missing_for_status

    try:
        with connect(address, timeout_s) as connection:
            missing = missing_for_status(connection, broker_id)
    except OSError:
        return []
    return [right for right in missing if not (knows_topics and lacks([right], "DESCRIBE_CONFIGS", "TOPIC"))]
