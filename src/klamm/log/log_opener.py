"""Opens the logs of a directory. Logs that the last run left complete are not opened before their first use."""

from __future__ import annotations

from klamm.log import names
from klamm.log.loader import LastRun, LogLoader
from klamm.log.log import Log
from klamm.log.log_config import LogConfig
from klamm.log.log_contents import LoadedLog
from klamm.log.log_dirs import LogDir
from klamm.log.log_environment import LogEnvironment
from klamm.log.summaries import inspect
from klamm.model import TopicPartition


class LogOpener:
    """Owner: the `LogManager`."""

    def __init__(self, env: LogEnvironment) -> None:
        self._env = env

    def get(self, tp: TopicPartition, log_dir: LogDir, config: LogConfig) -> Log:
        """Return a log that exists or is new. Do not open it if its summary is sufficient."""
        log = self._find(tp, log_dir, config)
        log.set_cleaner_offset(log_dir.cleaner_offsets.get(tp, 0))
        return log

    def _find(self, tp: TopicPartition, log_dir: LogDir, config: LogConfig) -> Log:
        start, clean = log_dir.log_start_offsets.get(tp, 0), log_dir.had_clean_shutdown
        env, path = self._env, log_dir.path
        recorded = summary = log_dir.recorded.logs.get(tp)
        if summary is not None:
            found = inspect(env.files, f"{path}/{names.dir_name(tp)}", summary)
            is_known = found.is_same if log_dir.is_record_of_clean_stop else found.is_unmodified
            if is_known and start <= summary.log_end_offset:

                def open_files(log_start_offset: int, recovery_point: int, config: LogConfig) -> LoadedLog:
                    last_run = LastRun(log_start_offset, recovery_point, clean, is_intact=True)
                    return LogLoader(env, tp, path, config, last_run).load_files()

                return LogLoader(env, tp, path, config, LastRun(start)).unopened(summary, open_files)
            if not log_dir.is_record_of_clean_stop or not found.damaged:
                recorded = None
        last_run = LastRun(start, log_dir.recovery_points.get(tp, 0), clean, recorded=recorded)
        return LogLoader(env, tp, path, config, last_run).load()

    def get_future(self, tp: TopicPartition, log_dir: LogDir, name: str, config: LogConfig) -> Log:
        """Return a future log, new or of the last run."""
        last_run = LastRun(had_clean_shutdown=log_dir.had_clean_shutdown)
        return LogLoader(self._env, tp, log_dir.path, config, last_run, dir_name=name).load()

    def reload(self, log: Log) -> Log:
        """Load the log again and recover it from its recovery point: one of its writes has failed half-way."""
        last_run = LastRun(log.log_start_offset, log.recovery_point)
        again = LogLoader(self._env, log.topic_partition, log.log_dir, log.config, last_run).load()
        again.set_cleaner_offset(log.cleaner_offset)
        again.update_high_watermark(log.high_watermark)
        return again
