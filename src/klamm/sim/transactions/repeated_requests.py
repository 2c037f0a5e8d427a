"""Counts requests that brokers receive twice: an abandoned request arrives after its repetition."""

from __future__ import annotations

from collections.abc import Collection

from klamm.sim.network import Network


class RepeatedRequests:
    """The network reports arrivals to it. It draws no random number, so it does not change the course of a run.

    A repetition has the same bytes except for its correlation id. A client uses a younger connection for it, so the
    request that arrives on the older one was abandoned.
    """

    def __init__(self, network: Network, keys: Collection[int]) -> None:
        self.count = 0
        self._heads = frozenset(key.to_bytes(2, "big") for key in keys)
        self._youngest: dict[tuple[str, str, bytes], int] = {}
        """The port of the youngest connection on which a request arrived: ports ascend."""
        network.on_arrived = self._on_arrived

    def _on_arrived(self, client: tuple[str, int], target: str, data: bytes) -> None:
        if data[4:6] not in self._heads:
            return
        host, port = client
        key = (host, target, data[4:8] + data[12:])
        youngest = self._youngest.get(key, port)
        self.count += port < youngest
        self._youngest[key] = max(port, youngest)
