"""The settings of each part of a broker, derived from its configuration.

A part receives its own frozen settings, not all keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from klamm.config import ConfigRepository, KafkaConfig
from klamm.controller.config import BLOCK_SIZE, ControllerConfig, InterBrokerProtocol
from klamm.model import EndPoint
from klamm.network.connection_quotas import ConnectionLimits, DescriptorRoom
from klamm.network.socket_server import SocketServer, SocketServerConfig
from klamm.security.listener_security import ListenerSecurity
from klamm.security.outgoing import OutgoingSecurity

_FLUSH_CHECK_MS: Final = 1_000


def connection_limits(config: KafkaConfig) -> ConnectionLimits:
    return ConnectionLimits(
        max_connections=config.max_connections,
        max_connections_per_ip=config.max_connections_per_ip,
        max_connections_per_ip_overrides=config.max_connections_per_ip_by_address,
        listener_max_connections=config.listener_max_connections,
    )


def socket_server(
    config: KafkaConfig, security: Mapping[str, ListenerSecurity], room: DescriptorRoom | None = None
) -> SocketServerConfig:
    return SocketServerConfig(
        num_io_threads=config.num_io_threads,
        queued_max_requests=config.queued_max_requests,
        queued_max_request_bytes=config.queued_max_request_bytes,
        socket_request_max_bytes=config.socket_request_max_bytes,
        socket_send_buffer_bytes=config.socket_send_buffer_bytes,
        socket_receive_buffer_bytes=config.socket_receive_buffer_bytes,
        socket_listen_backlog_size=config.socket_listen_backlog_size,
        connections_max_idle_ms=config.connections_max_idle_ms,
        connection_limits=connection_limits(config),
        descriptor_room=room if room is not None else DescriptorRoom(),
        control_plane_listener=config.control_plane_listener,
        inter_broker_listener=config.inter_broker_listener,
        security=security,
    )


def follow_network_keys(configs: ConfigRepository, sockets: SocketServer) -> None:
    """Apply dynamic changes of the pool's size and of the connection limits to the running network layer."""
    configs.on_change(["num.io.threads"], lambda _, new: sockets.handler_pool.resize(new.num_io_threads))
    limits = ["max.connections", "max.connections.per.ip", "max.connections.per.ip.overrides"]
    configs.on_change(limits, lambda _, new: sockets.update_limits(connection_limits(new)))


def advertised(config: KafkaConfig, bound: tuple[EndPoint, ...]) -> tuple[EndPoint, ...]:
    """Return the endpoints to register for clients; port 0 stands for the port that was bound."""
    ports = {endpoint.listener: endpoint.port for endpoint in bound}
    return tuple(replace(e, port=e.port or ports[e.listener]) for e in config.advertised_endpoints)


def controller(
    config: KafkaConfig,
    broker_id: int,
    endpoints: tuple[EndPoint, ...],
    *,
    unclean_shutdown: bool,
    outgoing: OutgoingSecurity,
    producer_ids_per_block: int = BLOCK_SIZE,
) -> ControllerConfig:
    return ControllerConfig(
        broker_id=broker_id,
        endpoints=endpoints,
        rack=config.broker_rack,
        inter_broker_protocol=InterBrokerProtocol.parse(config.inter_broker_protocol_version),
        inter_broker_listener=config.inter_broker_listener,
        control_plane_listener=config.control_plane_listener,
        num_partitions=config.num_partitions,
        default_replication_factor=config.default_replication_factor,
        delete_topic_enable=config.delete_topic_enable,
        unclean_leader_election_enable=config.unclean_leader_election_enable,
        auto_leader_rebalance_enable=config.auto_leader_rebalance_enable,
        leader_imbalance_check_interval_seconds=config.leader_imbalance_check_interval_seconds,
        leader_imbalance_per_broker_percentage=config.leader_imbalance_per_broker_percentage,
        unclean_shutdown=unclean_shutdown,
        socket_timeout_ms=config.controller_socket_timeout_ms,
        request_timeout_ms=config.request_timeout_ms,
        unclean_replica_wait_ms=config.klamm_unclean_replica_wait_ms,
        producer_ids_per_block=producer_ids_per_block,
        outgoing=outgoing,
    )


def flush_interval_ms(config: KafkaConfig) -> int:
    """Return the interval of flush checks: `flush.ms` of a topic is honoured to the second, unlike in Kafka."""
    return min(config.log_flush_scheduler_interval_ms, _FLUSH_CHECK_MS)
