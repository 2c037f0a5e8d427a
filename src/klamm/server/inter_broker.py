"""Versions of requests between the brokers of one cluster: `inter.broker.protocol.version`."""

from __future__ import annotations

from typing import Final, NamedTuple

from klamm.config import KafkaConfig
from klamm.controller.config import InterBrokerProtocol
from klamm.replica.fetcher_config import FetcherConfig


class FetcherVersions(NamedTuple):
    fetch: int
    list_offsets: int
    offset_for_leader_epoch: int


_STEPS: Final = (
    ((3, 9, 0), FetcherVersions(17, 9, 4)),
    ((3, 7, 4), FetcherVersions(16, 8, 4)),
    ((3, 5, 1), FetcherVersions(15, 8, 4)),
    ((3, 5, 0), FetcherVersions(14, 8, 4)),
    ((3, 1, 0), FetcherVersions(13, 7, 4)),
    ((3, 0, 1), FetcherVersions(12, 7, 4)),
    ((2, 8, 0), FetcherVersions(12, 6, 4)),
    ((2, 7, 1), FetcherVersions(12, 5, 3)),
)
_OLDEST: Final = FetcherVersions(11, 5, 3)


def protocol(config: KafkaConfig) -> InterBrokerProtocol:
    return InterBrokerProtocol.parse(config.inter_broker_protocol_version)


def fetcher_versions(ibp: InterBrokerProtocol) -> FetcherVersions:
    """Followers never negotiate: the version follows from the protocol alone."""
    return next((versions for at, versions in _STEPS if ibp.at_least(*at)), _OLDEST)


def has_producer_id_rpc(ibp: InterBrokerProtocol) -> bool:
    """Whether the controller allocates producer ids; in older versions every broker takes its own from ZooKeeper."""
    return ibp.at_least(3, 0, 0)


def controlled_shutdown_version(ibp: InterBrokerProtocol) -> int:
    return 3 if ibp.at_least(2, 4, 1) else 2


def fetcher_config(config: KafkaConfig, broker_id: int) -> FetcherConfig:
    versions = fetcher_versions(protocol(config))
    return FetcherConfig(
        broker_id=broker_id,
        listener=config.inter_broker_listener,
        num_fetchers=config.num_replica_fetchers,
        max_wait_ms=config.replica_fetch_wait_max_ms,
        min_bytes=config.replica_fetch_min_bytes,
        max_bytes=config.replica_fetch_max_bytes,
        response_max_bytes=config.replica_fetch_response_max_bytes,
        backoff_ms=config.replica_fetch_backoff_ms,
        socket_timeout_ms=config.replica_socket_timeout_ms,
        fetch_version=versions.fetch,
        list_offsets_version=versions.list_offsets,
        offset_for_leader_epoch_version=versions.offset_for_leader_epoch,
    )
