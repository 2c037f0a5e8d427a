"""Loads the logs of all directories when a broker starts."""

from __future__ import annotations

import logging
from collections.abc import Callable

from klamm.errors import KlammError, LogDirError
from klamm.log import names
from klamm.log.deletion_queue import DeletionQueue
from klamm.log.files import Files
from klamm.log.future_logs import FutureLogs
from klamm.log.hosted_logs import HostedLogs
from klamm.log.log import Log
from klamm.log.log_config import LogConfig
from klamm.log.log_dirs import LogDir
from klamm.log.log_opener import LogOpener
from klamm.model import TopicPartition

_log = logging.getLogger(__name__)


class LogDirLoader:
    """Used once per start. `add(log)` hosts a log; `config_of(topic)` returns its configuration.

    `delete_delay_ms` is for directories that the last run had marked for deletion.
    """

    def __init__(
        self,
        files: Files,
        hosted: HostedLogs,
        futures: FutureLogs,
        opener: LogOpener,
        deletions: DeletionQueue,
        add: Callable[[Log], None],
        config_of: Callable[[str], LogConfig],
        delete_delay_ms: int,
    ) -> None:
        self._files = files
        self._hosted = hosted
        self._futures = futures
        self._opener = opener
        self._deletions = deletions
        self._add = add
        self._config_of = config_of
        self._delete_delay_ms = delete_delay_ms
        self.found_damage = False
        """Whether files of a log were damaged or removed after a clean stop."""
        self._missing: dict[TopicPartition, str] = {}
        """Logs that are not in the directory where the last run recorded them."""
        self._deleted: set[TopicPartition] = set()

    def load(self, log_dir: LogDir) -> None:
        """Load the logs of one directory. Raises OSError if the disk fails."""
        futures: list[tuple[TopicPartition, str]] = []
        recorded = {names.dir_name(tp): (tp, "") for tp in log_dir.recorded.logs}
        for name in self._files.list_subdirs(log_dir.path):
            try:
                tp, mark = recorded.get(name) or names.parse_dir_name(name)
            except KlammError as e:
                _log.warning("%s: skipping a directory: %s", log_dir.path, e)
                continue
            if mark == names.DELETE_DIR:
                self._deleted.add(tp)
                self._deletions.put_tree(log_dir.path, f"{log_dir.path}/{name}", self._delete_delay_ms)
            elif mark == names.FUTURE_DIR:
                futures.append((tp, name))
            elif mark:
                _log.warning("skipping %s/%s: not an active log directory", log_dir.path, name)
            elif (other := self._hosted.get(tp)) is not None:
                raise LogDirError(f"{tp} is in {other.log_dir} and in {log_dir.path}: remove one of them")
            else:
                self._add(self._opener.get(tp, log_dir, self._config_of(tp.topic)))
        for tp, future_name in futures:
            self._futures.load(tp, log_dir, future_name, self._config_of(tp.topic))

    def look_for_damage(self, log_dir: LogDir) -> None:
        """Compare the logs of a directory, which are loaded, with the record of a clean stop."""
        if not log_dir.is_record_of_clean_stop:
            return
        for tp in log_dir.recorded.logs:
            log = self._hosted.get(tp)
            if log is None:
                self._missing[tp] = log_dir.path
            elif log.damages or log.lost_tail is not None:
                self.found_damage = True

    def adopt_complete_copies(self) -> None:
        """Finish swaps that were interrupted after the log in use was renamed: the copy is the log now.

        Call it after all directories were loaded, and only if none has failed.
        """
        for tp, future in list(self._futures.logs.items()):
            if self._hosted.get(tp) is None and tp in self._deleted:
                future.rename_dir(f"{future.log_dir}/{names.dir_name(tp)}")
                self._add(self._futures.take(tp))

    def report_missing(self) -> None:
        """Report the logs that are in no directory. A log may have been moved while the broker was down."""
        for tp, path in self._missing.items():
            if self._hosted.get(tp) is None:
                _log.error("%s: its directory was removed from %s after a clean stop", tp, path)
                self.found_damage = True
