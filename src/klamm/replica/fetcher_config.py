"""Settings of the replica fetchers: one frozen value, created by the server from the broker's configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from klamm.security.outgoing import OutgoingSecurity

TRUNCATION_ON_FETCH_VERSION: Final = 12
TOPIC_ID_VERSION: Final = 13
REPLICA_STATE_VERSION: Final = 15


@dataclass(frozen=True, slots=True)
class FetcherConfig:
    """The versions follow from `inter.broker.protocol.version`: fetchers never negotiate."""

    broker_id: int
    listener: str = "PLAINTEXT"
    num_fetchers: int = 1
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 1 << 20
    response_max_bytes: int = 10 << 20
    backoff_ms: int = 1000
    socket_timeout_ms: int = 30_000
    fetch_version: int = 17
    list_offsets_version: int = 9
    offset_for_leader_epoch_version: int = 4
    outgoing: OutgoingSecurity = field(default_factory=OutgoingSecurity)

    @property
    def truncates_on_fetch(self) -> bool:
        """Whether the leader reports divergence in Fetch responses; older versions need a separate request."""
        return self.fetch_version >= TRUNCATION_ON_FETCH_VERSION
