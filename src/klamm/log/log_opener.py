"""Opens the logs of a directory. Logs that the last run left complete are not opened before their first use."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import Final

from klamm.log import names
from klamm.log.loader import LastRun, LogLoader, read_topic_id
from klamm.log.log import Log
from klamm.log.log_config import LogConfig
from klamm.log.log_contents import LoadedLog, UnopenedLog
from klamm.log.log_dirs import LogDir
from klamm.log.log_environment import LogEnvironment
from klamm.log.open_segments import OpenSegments
from klamm.log.summaries import LogSummary, inspect
from klamm.model import TopicPartition

_log = logging.getLogger(__name__)
_OPEN_WHILE_RELOADING: Final = 10


class LogOpener:
    """Owner: the `LogManager`."""

    def __init__(self, env: LogEnvironment) -> None:
        self._env = env

    def get(self, tp: TopicPartition, log_dir: LogDir, config: LogConfig) -> Log:
        """Return a log that exists or is new. Do not open it if its summary is sufficient."""
        log = self._find(tp, log_dir, config)
        if offset := log_dir.cleaner_offsets.get(tp):  # most logs are never cleaned
            log.set_cleaner_offset(offset)
        return log

    def _find(self, tp: TopicPartition, log_dir: LogDir, config: LogConfig) -> Log:
        start, recovery_point = log_dir.log_start_offsets.get(tp, 0), log_dir.recovery_points.get(tp, 0)
        if log_dir.had_clean_shutdown and 0 < recovery_point < start:
            # The file is damaged; all records would be removed. After a crash the end can be lost, but not here.
            sentence = "%s: ignoring the log start offset %d of %s: the log ended at %d when the broker stopped"
            _log.error(sentence, log_dir.path, start, tp, recovery_point)
            start = 0
        recorded = summary = log_dir.recorded.logs.get(tp)
        if summary is not None:
            directory = f"{log_dir.path}/{names.dir_name(tp)}"
            found = inspect(self._env.files, directory, summary)
            is_known = found.is_same if log_dir.is_record_of_clean_stop else found.is_unmodified
            end = summary.log_end_offset
            # If all records were deleted after the summary, its latest epoch has none: the file of the epochs decides.
            if is_known and start <= end and (start < end or not summary.size_bytes):
                return self._unopened(tp, log_dir, directory, config, summary, start)
            if not log_dir.is_record_of_clean_stop or not found.damaged:
                recorded = None
        replicated = log_dir.high_watermarks.get(tp)
        last_run = LastRun(
            start, recovery_point, log_dir.had_clean_shutdown, recorded=recorded, high_watermark=replicated
        )
        return LogLoader(self._env, tp, log_dir.path, config, last_run).load()

    def _unopened(
        self, tp: TopicPartition, log_dir: LogDir, directory: str, config: LogConfig, summary: LogSummary, start: int
    ) -> Log:
        """Return a log as its summary describes it. Its files are loaded when they are first needed."""
        env, path = self._env, log_dir.path
        open_files = partial(_open_files, env, tp, path, log_dir.had_clean_shutdown, summary)
        contents = UnopenedLog(summary, start, open_files)
        return Log(env, tp, path, directory, config, contents, read_topic_id(env.files, tp, directory))

    def get_future(self, tp: TopicPartition, log_dir: LogDir, name: str, config: LogConfig) -> Log:
        """Return a future log, new or of the last run."""
        last_run = LastRun(had_clean_shutdown=log_dir.had_clean_shutdown)
        return LogLoader(self._env, tp, log_dir.path, config, last_run, dir_name=name).load()

    def reload(self, log: Log) -> LoadedLog:
        """Load a closed log again and recover it from its recovery point: one of its writes has failed half-way.

        This may read a whole segment, so it is done in the thread of the jobs, with a pool of its own.
        """
        pool = OpenSegments(_OPEN_WHILE_RELOADING)
        last_run = LastRun(log.log_start_offset, log.recovery_point, high_watermark=log.high_watermark)
        try:
            loader = LogLoader(replace(self._env, pool=pool), log.topic_partition, log.log_dir, log.config, last_run)
            loaded = loader.load_files()
            for segment in loaded.local.segments:
                segment.release()
            return loaded
        finally:
            pool.discard()

    def replaced(self, log: Log, loaded: LoadedLog) -> Log:
        """Return a log with the contents that `reload` has found."""
        env = self._env
        loaded.local.hand_over(env)
        # Connections outlive the failure, and the files do not contain after which one a transaction was aborted.
        loaded.local.producers.rebuilt_after = env.host.youngest_connection()
        again = Log(env, log.topic_partition, log.log_dir, log.dir, log.config, loaded, log.topic_id)
        again.set_cleaner_offset(log.cleaner_offset)
        again.update_high_watermark(log.high_watermark)
        return again


def _open_files(
    env: LogEnvironment,
    tp: TopicPartition,
    log_dir: str,
    is_clean: bool,
    summary: LogSummary,
    log_start_offset: int,
    recovery_point: int,
    config: LogConfig,
) -> LoadedLog:
    last_run = LastRun(log_start_offset, recovery_point, is_clean, intact=summary)
    return LogLoader(env, tp, log_dir, config, last_run).load_files()
