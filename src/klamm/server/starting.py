"""The start of a broker, step by step.

The order is Kafka's: coordination first, then identity, configuration and logs; then the listeners are bound,
so that the registered ports are really ours, the broker registers and competes for the controller's role, and only then
does it read its first request. Ready means: the controller has sent its first metadata.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path

from klamm import apis
from klamm.acl_changes import AclChangeListener
from klamm.apis.api_declaration import bind
from klamm.broker import Acls, Broker
from klamm.config import ConfigRepository, KafkaConfig
from klamm.config.authorizer_keys import super_users
from klamm.config_changes import ConfigChangeListener
from klamm.controller.controller_runner import ControllerRunner
from klamm.errors import ErrorCode, KlammError
from klamm.log import LogConfig, LogManager
from klamm.log.checkpoints import MetaProperties
from klamm.log.files import OsFiles
from klamm.log.log_manager import LogLimits
from klamm.metrics.http import MetricsServer
from klamm.model import EndPoint
from klamm.network.connection_quotas import ConnectionLimits
from klamm.network.socket_server import SocketServer
from klamm.security.acl.authorizer import AclAuthorizer
from klamm.server import collector, file_limit, identity, periodic_tasks, registration, settings
from klamm.server.assembly import Assembly, assemble, shut_down
from klamm.server.background_tasks import BackgroundTasks
from klamm.server.broker_addresses import BrokerAddresses
from klamm.server.broker_security import BrokerSecurity, check_security
from klamm.server.control_log import ControlLogWriter
from klamm.server.controlled_shutdown import controlled_shutdown
from klamm.server.coordination import Coordination
from klamm.server.disk_events import DiskEvents, DiskReactions
from klamm.server.ending import Ending
from klamm.server.environment import Environment, OnFailure
from klamm.server.feature_follower import FeatureFollower
from klamm.server.inter_broker_clients import InterBrokerClients
from klamm.server.loss_notes import LossNotes
from klamm.server.metrics_logins import MetricsLogins
from klamm.server.missed_deletions import MissedDeletions
from klamm.server.open_znodes import OpenZnodes
from klamm.server.peer_secret import peer_secret
from klamm.server.preloading import preload
from klamm.server.request_log import RequestLogWriter
from klamm.server.running import Running
from klamm.server.sasl_mechanisms import refresh_keys
from klamm.server.stray_replicas import StrayReplicas
from klamm.zk.client.loop_pulse import LoopPulse
from klamm.zk.client.zk_session import SessionState, ZkSession
from klamm.zk.model import paths

_MANY_CONNECTIONS = 10_000
"""A broker that may open fewer connections protects those of other brokers from the start."""
log = logging.getLogger(__name__)


class Starting:
    """One start of one broker. Each step adds to `ending` how it is undone; the last addition is undone first."""

    def __init__(self, config: KafkaConfig, environment: Environment, on_failure: OnFailure | None) -> None:
        self.ending = Ending()
        self.broker_id = config.broker_id
        """-1 until the start has found or generated it."""
        self._config = config
        self._environment = environment
        self._on_failure = on_failure
        self._coordination = environment.coordination(config, on_failure)
        self._control_log = ControlLogWriter(config, environment.clock)
        self._disk_events = DiskEvents()
        self._tasks = BackgroundTasks()

    async def run(self) -> Running:
        """Return when the broker answers clients."""
        ending, coordination, spawn = self.ending, self._coordination, self._tasks.spawn
        session_timeout_ms = self._config.zookeeper_session_timeout_ms
        check_security(self._config)
        ending.add(coordination.stop)
        preloading = preload(self._config)
        zk = await coordination.start()
        await self._prepare_znodes(zk)
        cluster_id = await identity.cluster_id(zk, self._environment.new_uuid)
        log_dirs = [str(path) for path in self._config.log_directories]
        files = self._environment.files or OsFiles()
        broker_id = self.broker_id = await identity.broker_id(zk, self._config, files, log_dirs)
        configs = ConfigRepository(self._config, broker_id)
        changes = ConfigChangeListener(zk, configs, broker_id)
        ending.add(changes.stop)
        changes.start()
        await changes.load_all()
        await preloading
        security = BrokerSecurity(configs, broker_id, cluster_id, await peer_secret(zk, self._environment.new_uuid))
        acls = await self._load_acls(configs)
        parts, had_predecessor = await self._take_over(broker_id, cluster_id, configs, security, acls)
        broker = parts.broker
        logs_end = LogsEnd(broker)
        ending.add(logs_end.close)
        metrics = await self._serve_metrics(broker, security)
        ending.add(partial(_stop_controller, parts.controller, coordination, session_timeout_ms))
        ending.add(self._tasks.stop)
        sockets = self._make_sockets(broker, security, await self._broker_addresses(broker))
        sockets.number_connections(parts.connections)
        ending.add(sockets.shutdown)
        clients = self._connect_parts(parts)
        ending.add(clients.stop)
        ending.add(partial(shut_down, broker))
        self._control_log.start(broker)
        ending.add(self._control_log.stop)
        self._trace_requests(broker, sockets, metrics)
        self._environment.on_built(broker)
        await sockets.bind()
        settings.follow_network_keys(configs, sockets)
        address = await self._join(
            broker, parts.controller, sockets, session_timeout_ms + registration.MARGIN_MS if had_predecessor else 0
        )
        ending.add(changes.stop)  # early too: no change may reach parts that are shut down
        ending.add(logs_end.judge)
        scheduler = periodic_tasks.schedule(broker, changes, spawn)
        ending.add(scheduler.stop)
        clients.start(scheduler)
        await registration.until_known(broker.metadata, address)
        await registration.until_partitions_known(broker.metadata, zk)
        self._serve_clients(sockets, metrics)
        names = ", ".join(f"{e.listener}://{e.host}:{e.port}" for e in sockets.endpoints)
        log.info("broker %d of cluster %s answers on %s", broker_id, cluster_id, names)
        return Running(broker, sockets.endpoints, metrics.port)

    def _serve_clients(self, sockets: SocketServer, metrics: MetricsServer) -> None:
        """Begin to answer clients.

        The collector is off until now. Passes between slices start here as well: the first one of a start would visit
        the objects of all partitions.
        """
        sockets.channel.passes = collector.slice_passes()
        sockets.open_data_plane()
        metrics.not_ready = None
        self.ending.add(partial(setattr, metrics, "not_ready", "The broker is stopping."))

    def _connect_parts(self, parts: Assembly) -> InterBrokerClients:
        """Let the parts act on events of disks, of ZooKeeper and of other brokers."""
        broker, spawn = parts.broker, self._tasks.spawn
        disks = DiskReactions(broker, spawn)
        self._disk_events.receiver = disks.events()
        broker.replicas.damaged_logs.ask_again = disks.request_leader_and_isr
        broker.replicas.damaged_logs.report = LossNotes(broker.zk, spawn).add
        MissedDeletions(broker, spawn).start()
        StrayReplicas(broker, spawn).start()
        features = FeatureFollower(broker, spawn)
        features.start()
        self.ending.add(features.close)
        parts.controller.on_failure = lambda: spawn(self._on_control_loop_failure())
        self.ending.add(parts.producer_id_blocks.close)
        self.ending.add(parts.coordinators.close)
        return InterBrokerClients(broker)

    async def _on_control_loop_failure(self) -> None:
        """Leave the cluster: a broker without a control loop would keep the controller's role and do nothing."""
        if self._on_failure is not None:
            self._on_failure("Its control loop ended with an error; the log above has the details.")
        await self._coordination.end_session()

    # --- steps ---------------------------------------------------------------------------------------------------

    async def _prepare_znodes(self, zk: ZkSession) -> None:
        await zk.ensure_paths(paths.PERSISTENT_PATHS)
        if self._config.zookeeper_set_acl:
            await OpenZnodes(zk).close()

    def _trace_requests(self, broker: Broker, sockets: SocketServer, metrics: MetricsServer) -> None:
        """Follow the keys of request traces. With an authorizer, traces are read from their topic only."""
        request_log = RequestLogWriter(broker, sockets.tracer)
        request_log.start()
        metrics.traces = request_log.lines if broker.acls is None else None
        self.ending.add(request_log.stop)

    async def _load_acls(self, configs: ConfigRepository) -> Acls | None:
        """Return the authorizer with the entries of ZooKeeper, which it follows from now on; None without one."""
        config = configs.config
        if not config.authorizer_class_name:
            return None
        authorizer = AclAuthorizer(
            super_users(config.super_users), allow_everyone_if_no_acl_found=config.allow_everyone_if_no_acl_found
        )
        changes = AclChangeListener(self._coordination.zk, authorizer)
        self.ending.add(changes.stop)
        await changes.start()
        return Acls(authorizer, changes)

    async def _take_over(
        self,
        broker_id: int,
        cluster_id: str,
        configs: ConfigRepository,
        security: BrokerSecurity,
        acls: Acls | None,
    ) -> tuple[Assembly, bool]:
        """Open the logs, end the session of their last broker, and make the owners of everything else.

        The second result is whether the last broker was not stopped cleanly. If the start fails meanwhile, logs that
        may lack records remain suspect.
        """
        logs = self._open_logs(configs, MetaProperties(broker_id, cluster_id))
        try:
            had_predecessor = await self._coordination.take_over([Path(d.path) for d in logs.dirs.live])
            zk = self._coordination.zk
            parts = assemble(
                broker_id, cluster_id, configs, logs, zk, self._control_log, self._environment, security.outgoing, acls
            )
        except (Exception, asyncio.CancelledError):
            logs.shutdown(is_clean=not logs.may_lack_records)
            raise
        return parts, had_predecessor

    def _open_logs(self, configs: ConfigRepository, owner: MetaProperties) -> LogManager:
        config, environment = configs.config, self._environment
        logs = LogManager(
            [str(path) for path in config.log_directories],
            clock=environment.clock,
            rng=environment.new_rng(),
            files=environment.files,
            default_config=LogConfig.from_properties(configs.topic_config("")),
            topic_config=lambda topic: LogConfig.from_properties(configs.topic_config(topic)),
            limits=LogLimits(
                config.producer_id_expiration_ms, file_limit.open_segments(has_zookeeper=_has_zookeeper(config))
            ),
            events=self._disk_events.relay(),
        )
        logs.load_logs(owner)
        return logs

    async def _serve_metrics(self, broker: Broker, security: BrokerSecurity) -> MetricsServer:
        """Start the endpoint, unless its port is negative."""
        config = broker.config
        host, port = config.klamm_metrics_host, config.klamm_metrics_port
        tls = security.metrics_context() if config.klamm_metrics_ssl_enable and port >= 0 else None
        delay_s = config.connection_failed_authentication_delay_ms / 1000
        logins = MetricsLogins(security.failures, delay_s, broker.clock.monotonic)
        login, room = config.klamm_metrics_basic_auth, file_limit.metrics_connections()
        server = MetricsServer(broker.metrics, host, port, tls=tls, login=login, logins=logins, max_connections=room)
        if port >= 0:
            self.ending.add(server.stop)
            await server.start()
            broker.configs.settle("klamm.metrics.port", str(server.port))
        return server

    async def _broker_addresses(self, broker: Broker) -> BrokerAddresses:
        """Return the addresses that have a reserve. If there are limits, registered brokers have one from the start.

        Otherwise a controller could not connect to a starting broker whose places are all taken.
        """
        spawn, resolve = self._tasks.spawn, self._environment.resolve
        addresses = BrokerAddresses(broker.config.advertised_endpoints, broker.metadata, spawn, resolve)
        is_limited = settings.connection_limits(broker.config) != ConnectionLimits()
        room = file_limit.connections(has_zookeeper=_has_zookeeper(broker.config))
        if is_limited or room.max_open < _MANY_CONNECTIONS:
            read = partial(registration.registered_brokers, broker.zk)
            await addresses.read_registrations(read)
            spawn(addresses.follow_registrations(read))
        if resolve is not None:
            spawn(addresses.resolve_periodically())
        return addresses

    def _make_sockets(self, broker: Broker, security: BrokerSecurity, addresses: BrokerAddresses) -> SocketServer:
        config = broker.config
        room = file_limit.connections(has_zookeeper=_has_zookeeper(config))
        for source in security.mechanisms.key_sources:
            self._tasks.spawn(refresh_keys(source))
        sockets = SocketServer(
            config.endpoints,
            bind(apis.ALL, broker),
            loop=broker.loop,
            clock=broker.clock,
            registry=broker.metrics,
            config=settings.socket_server(config, security.listeners, room),
            is_broker_address=addresses.includes,
            client_quotas=broker.quotas,
        )
        addresses.on_change = sockets.on_broker_addresses
        sockets.handler_pool.on_failed = self._control_log.on_failed_request
        return sockets

    async def _join(
        self, broker: Broker, controller: ControllerRunner, sockets: SocketServer, wait_ms: int
    ) -> EndPoint:
        """Register, compete for the controller's role, and read requests; return the address for the controller.

        Clients wait until the controller has sent the metadata. An earlier answer, without brokers and topics, makes a
        client forget all brokers that it knows: librdkafka 2.16 was seen to hang for good after it.
        """
        advertised = settings.advertised(broker.config, sockets.endpoints)
        own = settings.controller(
            broker.config,
            broker.id,
            advertised,
            unclean_shutdown=broker.logs.may_lack_records,
            outgoing=broker.outgoing,
            producer_ids_per_block=self._environment.producer_ids_per_block,
        )
        controller.start(own)
        registered = await registration.register(controller.handle, wait_ms)
        if registered.error != ErrorCode.NONE:
            raise KlammError(f"Broker {broker.id} cannot register: {registered.message}")
        broker.registration.renew(registered.broker_epoch)
        self.ending.add(partial(_move_leaders, broker))
        pulse = LoopPulse.started("broker", broker.config.zookeeper_session_timeout_ms / 1000)
        self.ending.add(pulse.stop)  # before logs are flushed, which may take long
        broker.zk.watch_loop(pulse)
        broker.groups.startup()
        broker.transactions.startup()
        sockets.start_processing(data=False)
        return next(e for e in advertised if e.listener == own.controller_listener)


class LogsEnd:
    """Closes the logs of a stopping broker. Whether they are whole is judged while their leaders are still known."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._is_clean = registration.is_tail_settled(broker)

    def judge(self) -> None:
        self._is_clean = registration.is_tail_settled(self._broker)

    def close(self) -> None:
        broker = self._broker
        broker.logs.shutdown(broker.replicas.high_watermarks(), broker.broker_epoch, is_clean=self._is_clean)


def _has_zookeeper(config: KafkaConfig) -> bool:
    """Return whether the embedded ZooKeeper runs in this process and has a share of its file descriptors."""
    return not config.zookeeper_connect


async def _move_leaders(broker: Broker) -> None:
    if broker.config.controlled_shutdown_enable:
        await controlled_shutdown(broker)


async def _stop_controller(controller: ControllerRunner, coordination: Coordination, timeout_ms: int) -> None:
    """Finish the current event first, unless ZooKeeper, for which it waits, no longer answers."""
    stopping = asyncio.ensure_future(controller.stop())
    is_connected = coordination.zk.state is SessionState.CONNECTED
    await asyncio.wait({stopping}, timeout=timeout_ms / 1000 if is_connected else 0)
    if not stopping.done():
        await coordination.end_session()
    await stopping
