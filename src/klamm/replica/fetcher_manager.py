"""ReplicaFetcherManager: assigns partitions to fetchers. One fetcher per leader and fetcher id.

A leader without a known address keeps its fetcher, which waits for the metadata: no LeaderAndIsr is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Generator, Iterable
from dataclasses import replace
from typing import Final
from zlib import crc32

from klamm.client.asyncio_connection import BrokerConnection
from klamm.client.connection_totals import outgoing_totals
from klamm.metadata import MetadataCache
from klamm.metrics import MetricsRegistry
from klamm.model import NO_LEADER, TopicPartition
from klamm.replica.fetch_state import PartitionFetchState
from klamm.replica.fetcher import Connect, ReplicaFetcher
from klamm.replica.fetcher_config import FetcherConfig
from klamm.replica.leader_requests import LeaderConnection
from klamm.replica.partition import Partition
from klamm.replica.replica_manager import ReplicaManager

log = logging.getLogger(__name__)

_METRIC: Final = ("kafka.server", "ReplicaFetcherManager")
_TAGS: Final = {"clientId": "Replica"}

MOVED_PER_SLICE: Final = 20
"""Partitions that get another fetcher before the loop serves others: about a quarter of a millisecond."""
CHECKED_PER_SLICE: Final = 200
"""The same for partitions that keep their fetcher."""

FetcherKey = tuple[int, int]
"""The leader's broker id and the fetcher id."""


class ReplicaFetcherManager:
    """Owns the fetchers of one broker, on the broker loop. `broker_epoch` returns the broker's current epoch."""

    def __init__(
        self,
        config: FetcherConfig,
        *,
        replicas: ReplicaManager,
        loop: asyncio.AbstractEventLoop,
        connect: Connect,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._config = config
        self._replicas = replicas
        self._loop = loop
        self._connect = connect
        self._broker_epoch = broker_epoch
        self._fetchers: dict[FetcherKey, ReplicaFetcher] = {}
        self._tasks: dict[FetcherKey, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._owner: dict[TopicPartition, ReplicaFetcher] = {}
        self._is_closed = False
        self._brokers: object = None
        self._register_gauges()

    def _register_gauges(self) -> None:
        fetchers = self._fetchers
        gauges: dict[str, Callable[[], object]] = {
            "MaxLag": lambda: max((fetcher.max_lag for fetcher in fetchers.values()), default=0),
            "MinFetchRate": lambda: min((fetcher.requests.rate() for fetcher in fetchers.values()), default=0.0),
            "FailedPartitionsCount": lambda: sum(len(fetcher.failed) for fetcher in fetchers.values()),
            "DeadThreadCount": lambda: sum(fetcher.has_crashed for fetcher in fetchers.values()),
        }
        for name, value in gauges.items():
            self._replicas.metrics.gauge(*_METRIC, name, value, _TAGS)

    @property
    def fetchers(self) -> tuple[ReplicaFetcher, ...]:
        return tuple(self._fetchers.values())

    # --- as the ReplicaManager calls it ----------------------------------------------------------------------------

    def add(self, partitions: Iterable[Partition]) -> None:
        """Start copying each partition from its leader, in the partition's leader epoch."""
        by_key: dict[FetcherKey, list[PartitionFetchState]] = {}
        for partition in partitions:
            if partition.leader == NO_LEADER or partition.log is None or self._is_closed:
                continue
            state = PartitionFetchState(partition, truncates_on_fetch=self._config.truncates_on_fetch)
            by_key.setdefault(self._key(partition), []).append(state)
        for key, states in by_key.items():
            fetcher = self._fetcher(key)
            fetcher.add(states)
            self._owner.update({state.tp: fetcher for state in states})

    def remove(self, partitions: Collection[TopicPartition]) -> None:
        """Stop copying. A fetcher without work ends soon, unless it gets new work."""
        owners = [owner for tp in partitions if (owner := self._owner.pop(tp, None)) is not None]
        if not owners:
            return
        for fetcher in dict.fromkeys(owners):
            fetcher.remove(partitions)
        self._loop.call_soon(self._end_idle)

    def has_failed(self, tp: TopicPartition) -> bool:
        owner = self._owner.get(tp)
        return owner is not None and tp in owner.failed

    def on_metadata_change(self) -> None:
        """A snapshot shares its brokers with the one before unless they changed."""
        brokers = self._replicas.metadata.snapshot.brokers
        if brokers is not self._brokers:
            self._brokers = brokers
            for fetcher in self._fetchers.values():
                fetcher.on_brokers_change()

    def resize(self, num_fetchers: int) -> None:
        """Distribute the partitions again, in slices: `num.replica.fetchers` has changed.

        Changes of the controller wait meanwhile, as they do for one another.
        """
        self._replicas.exclusively(lambda: self._replicas.apply_in_slices(self._resizing(num_fetchers), None))

    def _resizing(self, num_fetchers: int) -> Generator[int]:
        """Yield between slices. Each partition is copied by one fetcher at the end of a slice."""
        if num_fetchers == self._config.num_fetchers:
            return
        self._config = replace(self._config, num_fetchers=num_fetchers)
        moved_count = 0
        for checked_count, tp in enumerate(list(self._owner), 1):
            if self._is_closed:
                return
            moved_count += self._move(tp)
            if moved_count == MOVED_PER_SLICE or checked_count % CHECKED_PER_SLICE == 0:
                moved_count = 0
                yield checked_count

    def _move(self, tp: TopicPartition) -> bool:
        """Give the partition to the fetcher of its key. Return whether that is another one than before.

        A partition that was stopped meanwhile has no owner. One that has failed stays where it is, because it waits for
        the next LeaderAndIsr.
        """
        owner = self._owner.get(tp)
        state = None if owner is None else owner.states.get(tp)
        if owner is None or state is None or self._fetchers.get(self._key(state.partition)) is owner:
            return False
        self.remove((tp,))
        self.add((state.partition,))
        return True

    async def close(self) -> None:
        """Stop every fetcher; none starts afterwards."""
        self._is_closed = True
        for key in list(self._fetchers):
            self._end(key)
        await asyncio.gather(*self._ending, return_exceptions=True)

    # --- fetchers ------------------------------------------------------------------------------------------------

    def _key(self, partition: Partition) -> FetcherKey:
        topic, index = partition.topic_partition
        return partition.leader, (crc32(topic.encode()) + index) % self._config.num_fetchers

    def _fetcher(self, key: FetcherKey) -> ReplicaFetcher:
        fetcher = self._fetchers.get(key)
        if fetcher is None:
            leader_id, fetcher_id = key
            fetcher = self._fetchers[key] = ReplicaFetcher(
                f"ReplicaFetcher-{fetcher_id}-{leader_id}",
                leader_id,
                self._config,
                replicas=self._replicas,
                connect=self._connect,
                broker_epoch=self._broker_epoch,
                loop=self._loop,
            )
            self._tasks[key] = self._loop.create_task(fetcher.run(), name=fetcher.name)
        return fetcher

    def _end_idle(self) -> None:
        for key in [key for key, fetcher in self._fetchers.items() if fetcher.is_idle]:
            self._end(key)

    def _end(self, key: FetcherKey) -> None:
        self._fetchers.pop(key).remove_metrics()
        task = self._tasks.pop(key)
        task.cancel()
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


def connect_by_metadata(config: FetcherConfig, metadata: MetadataCache, metrics: MetricsRegistry) -> Connect:
    """Open connections to a broker's current address in the metadata."""

    async def connect(broker_id: int) -> LeaderConnection:
        endpoint = metadata.endpoint(broker_id, config.listener)
        if endpoint is None:
            raise ConnectionError(f"the metadata has no address of broker {broker_id} for {config.listener}")
        return await BrokerConnection.connect(
            endpoint.host,
            endpoint.port,
            timeout_ms=config.socket_timeout_ms,
            client_id=f"broker-{config.broker_id}-fetcher",
            request_timeout_ms=config.socket_timeout_ms + config.max_wait_ms,
            totals=outgoing_totals(metrics, "replica-fetcher", broker_id),
            security=config.outgoing.of(config.listener),
        )

    return connect
