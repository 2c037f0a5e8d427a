"""How the logs of a directory come into use: those that the last run left complete are not opened yet."""

from __future__ import annotations

from klamm.log import names
from klamm.log.lazy_log import LazyLog, LogFiles
from klamm.log.loader import LogEnvironment, LogLoader
from klamm.log.log import Log
from klamm.log.log_config import LogConfig
from klamm.log.log_dirs import LogDir
from klamm.log.summaries import inspect
from klamm.model import TopicPartition


class LogOpener:
    """Owner: the `LogManager`."""

    def __init__(self, env: LogEnvironment) -> None:
        self._env = env

    def get(self, tp: TopicPartition, log_dir: LogDir, config: LogConfig) -> Log:
        """A log that exists or is new, opened unless its summary tells enough about it."""
        log = self._find(tp, log_dir, config)
        log.cleaner_offset = min(log_dir.cleaner_offsets.get(tp, 0), log.log_end_offset)
        return log

    def _find(self, tp: TopicPartition, log_dir: LogDir, config: LogConfig) -> Log:
        start, clean = log_dir.log_start_offsets.get(tp, 0), log_dir.had_clean_shutdown
        env, path = self._env, log_dir.path
        recorded = summary = log_dir.recorded.logs.get(tp)
        if summary is not None:
            found = inspect(env.files, f"{path}/{names.dir_name(tp)}", summary)
            is_known = found.is_same if log_dir.is_record_of_clean_stop else found.is_unmodified
            if is_known and start <= summary.log_end_offset:
                loader = LogLoader(env, tp, path, config, log_start_offset=start)
                return loader.unopened(summary, lambda log: self._open(log, clean=clean))
            if not log_dir.is_record_of_clean_stop or not found.damaged:
                recorded = None
        return LogLoader(
            env,
            tp,
            path,
            config,
            log_start_offset=start,
            recovery_point=log_dir.recovery_points.get(tp, 0),
            had_clean_shutdown=clean,
            recorded=recorded,
        ).load()

    def get_future(self, tp: TopicPartition, log_dir: LogDir, name: str, config: LogConfig) -> Log:
        """A copy of a log under the name of a future log, new or of the last run."""
        clean = log_dir.had_clean_shutdown
        return LogLoader(self._env, tp, log_dir.path, config, had_clean_shutdown=clean, dir_name=name).load()

    def reload(self, log: Log) -> Log:
        """The log anew, recovered from its recovery point: a write to it has failed half-way."""
        again = LogLoader(
            self._env,
            log.topic_partition,
            log.log_dir,
            log.config,
            log_start_offset=log.log_start_offset,
            recovery_point=log.recovery_point,
        ).load()
        again.cleaner_offset = min(log.cleaner_offset, again.log_end_offset)
        again.update_high_watermark(log.high_watermark)
        return again

    def _open(self, log: LazyLog, *, clean: bool) -> LogFiles:
        return LogLoader(
            self._env,
            log.topic_partition,
            log.log_dir,
            log.config,
            log_start_offset=log.log_start_offset,
            recovery_point=log.recovery_point,
            had_clean_shutdown=clean,
            is_intact=True,
        ).load_files()
