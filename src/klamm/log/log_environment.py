"""The objects that all logs of a broker share."""

from __future__ import annotations

from dataclasses import field
from random import Random

from klamm.clock import Clock
from klamm.lazy_dataclass import lazy_dataclass
from klamm.log.files import Files
from klamm.log.jobs import LogHost
from klamm.log.open_segments import OpenSegments


@lazy_dataclass(frozen=True, slots=True)
class LogEnvironment:
    """The file system, the clock, the random numbers and the host of the logs, and the pool of their open segments."""

    files: Files
    clock: Clock
    rng: Random
    host: LogHost
    pool: OpenSegments = field(default_factory=OpenSegments)
    producer_id_expiration_ms: int = 86_400_000
