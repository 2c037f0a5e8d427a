"""The periodic tasks of a running broker and their intervals."""

from __future__ import annotations

from klamm.broker import Broker
from klamm.clock import elapsed_ms
from klamm.config_changes import ConfigChangeListener
from klamm.server import settings
from klamm.server.background_tasks import Spawn
from klamm.server.schedules import Scheduler


def schedule(broker: Broker, changes: ConfigChangeListener, spawn: Spawn) -> Scheduler:
    """Start the schedule. `spawn` runs the tasks that wait for ZooKeeper."""
    scheduler = Scheduler(broker.loop)
    _schedule_logs(scheduler, broker)
    config = broker.config
    every = scheduler.every
    every("quota-account-expiration", 30_000, broker.quotas.expire)
    every("config-change-purge", 60_000, lambda: spawn(changes.purge(broker.clock.now_ms())))
    if (acls := broker.acls) is not None:
        every("acl-change-purge", 60_000, lambda: spawn(acls.changes.purge(broker.clock.now_ms())))
    every("isr-expiration", max(config.replica_lag_time_max_ms // 2, 1), broker.replicas.isr_pass)
    return scheduler


def _schedule_logs(scheduler: Scheduler, broker: Broker) -> None:
    config, logs, now = broker.config, broker.logs, broker.clock.now_ms
    every = scheduler.every
    every(
        "log-retention",
        config.log_retention_check_interval_ms,
        lambda: logs.passes.retention(now()),
        first_ms=min(config.log_initial_task_delay_ms, config.log_retention_check_interval_ms),
    )
    every("log-flusher", settings.flush_interval_ms(config), lambda: logs.passes.flush(elapsed_ms(broker.clock)))
    every("log-dir-revival", 10_000, logs.passes.revival)
    every("file-deletion", 1_000, lambda: logs.passes.deletion(elapsed_ms(broker.clock)))
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
