"""KafkaServer: one broker, from its configuration to an answering process and back.

The order is Kafka's: coordination first, then identity, configuration and logs; then the listeners are bound,
so that the registered ports are really ours, the broker registers and competes for the controller's role, and only then
does it read its first request. Ready means: the controller has sent its first metadata.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from klamm import apis
from klamm.apis.api_declaration import bind
from klamm.broker import Broker, Registration, TopicCreation
from klamm.config import ConfigRepository, KafkaConfig
from klamm.config_changes import ConfigChangeListener
from klamm.controller.controller_runner import ControllerRunner
from klamm.coordinator.shell import create_group_coordinator
from klamm.errors import ErrorCode, KlammError
from klamm.log import LogConfig, LogManager
from klamm.log.checkpoints import MetaProperties
from klamm.log.files import OsFiles
from klamm.log.log_manager import LogEvents, LogLimits
from klamm.metadata import MetadataCache
from klamm.metrics import MetricsRegistry
from klamm.metrics.http import MetricsServer
from klamm.model import EndPoint, TopicPartition
from klamm.network.socket_server import SocketServer
from klamm.purgatory import DelayedOperationPurgatory
from klamm.replica.append_path import append_records
from klamm.replica.controller_guard import ControllerGuard, read_control_state
from klamm.replica.fetch_session import FetchSessionCache
from klamm.replica.gauges import register_purgatory
from klamm.replica.producer_ids import ProducerIdBlock, ProducerIdManager
from klamm.replica.replica_manager import ReplicaManager
from klamm.replica.replica_selector import SELECTORS
from klamm.replica.replication_quota import ReplicationQuotas
from klamm.server import file_limit, identity, log_dir_notes, metadata_gauges, registration, settings
from klamm.server.control_log import ControlLogWriter
from klamm.server.controlled_shutdown import controlled_shutdown
from klamm.server.coordination import Coordination
from klamm.server.dynamic_config import follow_throttles, follow_topic_configs
from klamm.server.environment import Environment
from klamm.server.missed_deletions import MissedDeletions
from klamm.server.replication import Replication
from klamm.server.schedules import Scheduler
from klamm.server.stray_replicas import StrayReplicas
from klamm.zk.client.loop_pulse import LoopPulse
from klamm.zk.client.zk_session import SessionState
from klamm.zk.model import paths
from klamm.zk.model.ops import ZkError

log = logging.getLogger(__name__)


class KafkaServer:
    """Owner of everything that runs in a broker process; lives on the broker loop."""

    def __init__(
        self,
        config: KafkaConfig,
        environment: Environment | None = None,
        on_failure: Callable[[str], None] | None = None,
    ) -> None:
        """`on_failure` is called with the reason if the broker cannot continue; its starter then stops it."""
        self._static_config = config
        self._on_failure = on_failure
        self._environment = environment or Environment()
        self._clock = self._environment.clock
        self._coordination: Coordination | None = None
        self._broker: Broker | None = None
        self._logs: LogManager | None = None
        self._controller: ControllerRunner | None = None
        self._sockets: SocketServer | None = None
        self._changes: ConfigChangeListener | None = None
        self._scheduler: Scheduler | None = None
        self._replication: Replication | None = None
        self._metrics_server: MetricsServer | None = None
        self._control_log = ControlLogWriter(config, self._clock)
        self._tasks: dict[asyncio.Task[None], None] = {}
        """In start order: a set would cancel them in the order of memory addresses."""
        self._has_joined = False
        self._pulse: LoopPulse | None = None

    @property
    def broker(self) -> Broker:
        assert self._broker is not None, "the server is not started"
        return self._broker

    @property
    def endpoints(self) -> tuple[EndPoint, ...]:
        assert self._sockets is not None, "the server is not started"
        return self._sockets.endpoints

    @property
    def metrics_port(self) -> int:
        """-1 when there is no metrics endpoint."""
        return -1 if self._metrics_server is None else self._metrics_server.port

    # --- start ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Return when the broker answers clients. Raises KlammError if it cannot start."""
        try:
            await self._start()
        except ZkError as error:
            raise KlammError(f"ZooKeeper was lost while the broker started ({error}): start it again.") from error

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        config, environment = self._static_config, self._environment
        self._coordination = coordination = environment.coordination(config, self._on_failure)
        zk = await coordination.start()
        await zk.ensure_paths(paths.PERSISTENT_PATHS)
        cluster_id = await identity.cluster_id(zk, environment.new_uuid)
        log_dirs = [str(path) for path in config.log_directories]
        broker_id = await identity.broker_id(zk, config, environment.files or OsFiles(), log_dirs)
        configs = ConfigRepository(config, broker_id)
        self._changes = ConfigChangeListener(zk, configs, broker_id)
        self._changes.start()
        await self._changes.load_all()
        self._logs = self._open_logs(configs, MetaProperties(broker_id, cluster_id))
        had_predecessor = await coordination.take_over([Path(d.path) for d in self._logs.dirs.live])
        self._broker = self._build(loop, broker_id, cluster_id, configs)
        self._replication = Replication(self._broker)
        self._broker.replicas.damaged_logs.ask_again = self._ask_to_be_told
        MissedDeletions(self._broker, self._spawn)
        StrayReplicas(self._broker, self._spawn)
        self._control_log.start(self._broker)
        await self._open_listeners()
        address = await self._join(
            config.zookeeper_session_timeout_ms + registration.MARGIN_MS if had_predecessor else 0
        )
        self._schedule()
        await registration.until_known(self._broker.metadata, address)
        await registration.until_partitions_known(self._broker.metadata, zk)
        assert self._sockets is not None
        self._sockets.open_data_plane()
        names = ", ".join(f"{e.listener}://{e.host}:{e.port}" for e in self.endpoints)
        log.info("Broker %d of cluster %s answers on %s", broker_id, cluster_id, names)

    def _open_logs(self, configs: ConfigRepository, meta: MetaProperties) -> LogManager:
        config = configs.config
        logs = LogManager(
            [str(path) for path in config.log_directories],
            clock=self._clock,
            rng=self._environment.new_rng(),
            files=self._environment.files,
            default_config=LogConfig.from_properties(configs.topic_config("")),
            topic_config=lambda topic: LogConfig.from_properties(configs.topic_config(topic)),
            limits=LogLimits(config.producer_id_expiration_ms, file_limit.open_segments()),
            events=LogEvents(self._on_dir_failure, self._on_dir_revival, self._on_flushed),
        )
        logs.load_logs(meta)
        return logs

    def _build(
        self, loop: asyncio.AbstractEventLoop, broker_id: int, cluster_id: str, configs: ConfigRepository
    ) -> Broker:
        assert self._logs is not None and self._coordination is not None
        config = configs.config
        metrics = MetricsRegistry(self._clock)
        metadata = MetadataCache(broker_id)
        replicas = ReplicaManager(
            broker_id=broker_id,
            logs=self._logs,
            metadata=metadata,
            clock=self._clock,
            loop=loop,
            metrics=metrics,
            max_lag_ms=config.replica_lag_time_max_ms,
            quotas=ReplicationQuotas(
                self._clock,
                metrics,
                config.replication_quota_window_num,
                config.replication_quota_window_size_seconds,
            ),
        )
        replicas.replica_selector = SELECTORS[config.replica_selector_class] if config.replica_selector_class else None
        groups = create_group_coordinator(
            config=config,
            replicas=replicas,
            append_records=partial(append_records, replicas),
            metadata=metadata,
            clock=self._clock,
            loop=loop,
            metrics=metrics,
            new_uuid=lambda: str(self._environment.new_uuid()),
        )
        self._logs.start_background(loop, self._environment.file_worker)
        zk = self._coordination.zk
        own = Registration()
        guard = ControllerGuard(loop, lambda: read_control_state(zk, broker_id), lambda: own.epoch)
        replicas.record_checks.start(
            self._environment.record_worker or ThreadPoolExecutor(1, thread_name_prefix="klamm-records")
        )
        self._controller = self._environment.controller_runner(
            zk=zk,
            clock=self._clock,
            rng=self._environment.new_rng(),
            metrics=metrics,
            loop=loop,
            on_broker_epoch=self._on_broker_epoch,
            on_claim=guard.confirm,
            control_log=self._control_log.of_control_loop,
        )
        handle = self._controller.handle
        broker = Broker(
            id=broker_id,
            cluster_id=cluster_id,
            configs=configs,
            clock=self._clock,
            loop=loop,
            metadata=metadata,
            logs=self._logs,
            replicas=replicas,
            groups=groups,
            controller=handle,
            controller_guard=guard,
            metrics=metrics,
            fetch_sessions=FetchSessionCache(
                config.max_incremental_fetch_session_cache_slots, self._clock, self._environment.new_rng(), metrics
            ),
            producer_ids=ProducerIdManager(loop, self._allocate_producer_ids),
            topic_purgatory=DelayedOperationPurgatory("Topic", loop),
            election_purgatory=DelayedOperationPurgatory("ElectLeader", loop),
            topic_creation=TopicCreation(handle, configs),
            zk=zk,
            registration=own,
            control_log=self._control_log.of_broker_loop,
        )
        for purgatory in (broker.topic_purgatory, broker.election_purgatory):
            register_purgatory(metrics, purgatory)
        follow_topic_configs(broker, handle)
        follow_throttles(broker)
        metadata_gauges.register(broker)
        return broker

    async def _open_listeners(self) -> None:
        broker = self.broker
        config = broker.config
        self._sockets = SocketServer(
            config.endpoints,
            bind(apis.ALL, broker),
            loop=broker.loop,
            clock=self._clock,
            registry=broker.metrics,
            config=settings.socket_server(config),
            is_broker_address=lambda address: settings.is_broker_address(address, config, broker.metadata.snapshot),
        )
        await self._sockets.bind()
        settings.follow_network_keys(broker.configs, self._sockets)
        if config.klamm_metrics_port >= 0:
            self._metrics_server = MetricsServer(broker.metrics, config.klamm_metrics_host, config.klamm_metrics_port)
            await self._metrics_server.start()
            broker.configs.settle("klamm.metrics.port", str(self.metrics_port))

    async def _join(self, wait_ms: int) -> EndPoint:
        """Register, compete for the controller's role, and read requests; return the address for the controller.

        Clients wait until the controller has sent the metadata. An earlier answer, without brokers and topics, makes a
        client forget all brokers that it knows: librdkafka 2.16 was seen to hang for good after it.
        """
        assert self._controller is not None and self._sockets is not None
        broker = self.broker
        advertised = settings.advertised(broker.config, self._sockets.endpoints)
        settings_of_controller = settings.controller(
            broker.config, broker.id, advertised, unclean_shutdown=broker.logs.may_lack_records
        )
        self._controller.start(settings_of_controller)
        registered = await registration.register(self._controller.handle, wait_ms)
        if registered.error != ErrorCode.NONE:
            raise KlammError(f"Broker {broker.id} cannot register: {registered.message}")
        broker.registration.epoch = registered.broker_epoch
        self._has_joined = True
        self._pulse = LoopPulse.started("broker", broker.config.zookeeper_session_timeout_ms / 1000)
        broker.zk.watch_loop(self._pulse)
        broker.groups.startup()
        self._sockets.start_processing(data=False)
        return next(e for e in advertised if e.listener == settings_of_controller.controller_listener)

    # --- while it runs -------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        broker, logs = self.broker, self.broker.logs
        now = self._clock.now_ms
        self._scheduler = scheduler = Scheduler(broker.loop)
        config = broker.config
        every = scheduler.every
        first_ms = config.log_initial_task_delay_ms
        every(
            "log-retention",
            config.log_retention_check_interval_ms,
            lambda: logs.passes.retention(now()),
            first_ms=min(first_ms, config.log_retention_check_interval_ms),
        )
        every("log-flusher", settings.flush_interval_ms(config), lambda: logs.passes.flush(now()))
        every("log-dir-revival", 10_000, logs.passes.revival)
        every("file-deletion", 1_000, lambda: logs.passes.deletion(now()))
        if config.log_cleaner_enable:
            every("log-cleaner", config.log_cleaner_backoff_ms, lambda: logs.passes.compaction(now()))
        every(
            "recovery-point-checkpoint",
            config.log_flush_offset_checkpoint_interval_ms,
            logs.checkpoints.recovery_point_pass,
        )
        every("log-summary", config.log_flush_offset_checkpoint_interval_ms, logs.checkpoints.summary_pass)
        every(
            "log-start-offset-checkpoint",
            config.log_flush_start_offset_checkpoint_interval_ms,
            logs.checkpoints.log_start_offset_pass,
        )
        every(
            "highwatermark-checkpoint",
            config.replica_high_watermark_checkpoint_interval_ms,
            broker.replicas.high_watermark_pass,
        )
        every(
            "producer-expiration",
            config.producer_id_expiration_check_interval_ms,
            lambda: logs.passes.producer_expiration(now()),
        )
        every("config-change-purge", 60_000, lambda: self._spawn(self._purge_config_changes()))
        every("isr-expiration", max(config.replica_lag_time_max_ms // 2, 1), broker.replicas.isr_pass)
        assert self._replication is not None
        self._replication.start(scheduler)

    def _spawn(self, coroutine: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("a background task failed: %s", error)

    def _on_broker_epoch(self, broker_epoch: int) -> None:
        self.broker.registration.epoch = broker_epoch

    async def _purge_config_changes(self) -> None:
        assert self._changes is not None
        await self._changes.purge(self._clock.now_ms())

    def _on_flushed(self, tp: TopicPartition, recovery_point: int) -> None:
        if self._broker is not None:
            self._broker.replicas.on_flushed(tp, recovery_point)

    def _on_dir_failure(self, log_dir: str, sentence: str) -> None:
        """Called inside the failing operation, so the consequences are posted."""
        if self._broker is not None:
            self._broker.loop.call_soon_threadsafe(lambda: self._spawn(self._take_dir_offline(log_dir)))

    async def _take_dir_offline(self, log_dir: str) -> None:
        for _ in self.broker.replicas.log_dir_failure_pass(log_dir):
            await asyncio.sleep(0)
        self._ask_to_be_told()

    def _ask_to_be_told(self) -> None:
        """The controller answers the notification with a LeaderAndIsr of all replicas here."""
        self._spawn(log_dir_notes.leave_note(self.broker.zk, self.broker.id))

    def _on_dir_revival(self, log_dir: str) -> None:
        self.broker.replicas.on_log_dir_revival(log_dir)
        self._ask_to_be_told()

    def _allocate_producer_ids(self) -> asyncio.Future[ProducerIdBlock]:
        assert self._replication is not None
        return self._replication.allocate_producer_ids()

    # --- stop ----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """A controlled shutdown: leaderships move, waiting requests are answered, logs are flushed and marked clean."""
        is_clean = self._broker is None or registration.is_tail_settled(self._broker)
        if self._pulse is not None:
            self._pulse.stop()  # flushing logs may take long
        if self._scheduler is not None:
            self._scheduler.stop()
        if self._changes is not None:
            await self._changes.stop()
        if self._broker is not None and self._sockets is not None:
            await self._leave(self._broker, self._sockets)
        await self._stop_tasks()
        if self._controller is not None:
            await self._stop_controller(self._controller)
        if self._metrics_server is not None:
            await self._metrics_server.stop()
        if self._logs is not None:
            epoch = -1 if self._broker is None else self._broker.broker_epoch
            marks = None if self._broker is None else self._broker.replicas.high_watermarks()
            self._logs.shutdown(marks, epoch, is_clean=is_clean)
        if self._coordination is not None:
            await self._coordination.stop()
        log.info("Stopped")

    async def _stop_tasks(self) -> None:
        """Cancel them: ZooKeeper or the controller, for which they wait, will not answer."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _stop_controller(self, controller: ControllerRunner) -> None:
        """Finish the current event first, unless ZooKeeper, for which it waits, no longer answers."""
        stopping = asyncio.ensure_future(controller.stop())
        is_connected = self.broker.zk.state is SessionState.CONNECTED
        timeout_s = self._static_config.zookeeper_session_timeout_ms / 1000 if is_connected else 0
        await asyncio.wait({stopping}, timeout=timeout_s)
        if not stopping.done() and self._coordination is not None:
            await self._coordination.end_session()
        await stopping

    async def _leave(self, broker: Broker, sockets: SocketServer) -> None:
        if self._has_joined and broker.config.controlled_shutdown_enable:
            await controlled_shutdown(broker)
        await self._control_log.stop()
        broker.groups.shutdown()
        for purgatory in (broker.topic_purgatory, broker.election_purgatory):
            purgatory.shutdown()
        broker.controller_guard.shutdown()
        broker.replicas.shutdown()
        if self._replication is not None:
            await self._replication.stop()
        await sockets.shutdown()
