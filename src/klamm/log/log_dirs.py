"""The log directories: which are usable, who owns them, and what the last run left in them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence

from klamm.errors import KlammError, LogDirError
from klamm.log import names
from klamm.log.checkpoints import UNOWNED, MetaProperties, read_meta_properties, read_offsets, write_meta_properties
from klamm.log.files import Files, Lock
from klamm.log.summaries import RecordedLogs, read_recorded
from klamm.model import TopicPartition

_log = logging.getLogger(__name__)


class LogDir:
    """One usable directory, locked, with the checkpoints as the last run wrote them."""

    def __init__(self, path: str, files: Files, lock: Lock) -> None:
        self.path = path
        self._files = files
        self._lock = lock
        self.recovery_points = self._read(names.RECOVERY_POINT_CHECKPOINT)
        self.log_start_offsets = self._read(names.LOG_START_OFFSET_CHECKPOINT)
        self.high_watermarks = self._read(names.HIGH_WATERMARK_CHECKPOINT)
        self.cleaner_offsets = self._read(names.CLEANER_CHECKPOINT)
        self.had_clean_shutdown = files.exists(f"{path}/{names.CLEAN_SHUTDOWN}")
        self.recorded = read_recorded(files, path)
        self.is_record_of_clean_stop = self.had_clean_shutdown and self.recorded.clean_stop == self._marker_ns()

    def _marker_ns(self) -> int:
        return self._files.stat(f"{self.path}/{names.CLEAN_SHUTDOWN}").modified_ns

    def take_into_use(self) -> None:
        """Remove the mark of a clean shutdown: the logs must be recovered if the broker crashes from now on.

        The removal must be on the disk before anything is appended. If the mark came back after a power failure, a log
        that lost its tail would be mistaken for a complete one.
        """
        self._files.unlink(f"{self.path}/{names.CLEAN_SHUTDOWN}")
        if self.had_clean_shutdown:
            self._files.fsync_path(self.path)

    def _read(self, name: str) -> dict[TopicPartition, int]:
        """Read a checkpoint. An invalid one counts as missing: more than needed is recovered, and nothing is lost."""
        try:
            return read_offsets(self._files, f"{self.path}/{name}")
        except KlammError as e:
            _log.warning("ignoring a checkpoint: %s", e)
            return {}

    def checkpoints(self) -> dict[str, dict[TopicPartition, int]]:
        """Return the offsets that the last run left, by the name of their file."""
        return {
            names.RECOVERY_POINT_CHECKPOINT: self.recovery_points,
            names.LOG_START_OFFSET_CHECKPOINT: self.log_start_offsets,
            names.CLEANER_CHECKPOINT: self.cleaner_offsets,
        }

    def forget_start_state(self) -> None:
        """Forget what the last run left: it does not apply to logs that are created later."""
        self.recovery_points = {}
        self.log_start_offsets = {}
        self.cleaner_offsets = {}
        self.recorded = RecordedLogs(0, {})
        self.had_clean_shutdown = self.is_record_of_clean_stop = False

    def mark_clean_shutdown(self, broker_epoch: int) -> None:
        text = f'{{"version":0,"brokerEpoch":{broker_epoch}}}'
        self._files.write_atomic(f"{self.path}/{names.CLEAN_SHUTDOWN}", text.encode())

    def release(self) -> None:
        self._lock.release()


class LogDirs:
    """Owner: the `LogManager`."""

    def __init__(self, paths: Sequence[str], files: Files) -> None:
        self.paths = tuple(dict.fromkeys(p.rstrip("/") or "/" for p in paths))
        self.live: list[LogDir] = []
        self._opened: list[LogDir] = []
        self.failures: dict[str, str] = {}
        self.high_watermarks: dict[TopicPartition, int] = {}
        self._files = files

    def open_all(self) -> None:
        """Create and lock every directory. Note those that the disk refuses; raise LogDirError if one is in use.

        The contents are not changed yet.
        """
        for path in self.paths:
            try:
                self._files.make_dirs(path)
                lock = self._files.lock(f"{path}/{names.LOCK}")
                self._opened.append(LogDir(path, self._files, lock))
                self._warn_if_shared(path)
            except LogDirError:
                self.release()
                raise
            except OSError as e:
                self.failures[path] = f"{path} cannot be used: {e.strerror or e}"
                _log.error("%s", self.failures[path])
        self.live = list(self._opened)
        for log_dir in self.live:
            self.high_watermarks.update(log_dir.high_watermarks)

    def _warn_if_shared(self, path: str) -> None:
        """Earlier versions, and Kafka, create files that all users can read. The operator may share them on purpose."""
        if (mode := self._files.shared_mode(path)) is not None:
            _log.warning(
                "log directory %s has mode %04o, and every user of this machine can read files in it. "
                "If you do not share it on purpose, run: chmod 700 %s",
                path,
                mode,
                path,
            )

    def fail(self, path: str, sentence: str) -> bool:
        """Note that a directory has failed; return False if that was known."""
        if path in self.failures:
            return False
        self.failures[path] = sentence
        self.live = [d for d in self.live if d.path != path]
        return True

    def revive(self, path: str) -> None:
        """Note that a directory that had failed can be used again."""
        self.failures.pop(path, None)
        self.live = [d for d in self._opened if d.path not in self.failures]

    def usage(self, path: str) -> tuple[int, int]:
        """Return (total bytes, usable bytes), or -1 if the disk does not report them."""
        with contextlib.suppress(OSError):
            return self._files.disk_usage(path)
        return -1, -1

    def claim(self, owner: MetaProperties) -> None:
        """Write the owner of the directories. Raises KlammError if one belongs to another broker or cluster.

        All are checked before the first one is written: a refused start changes nothing.
        """
        unclaimed = [d for d in self.live if self._must_claim(d, owner)]
        for log_dir in unclaimed:
            with self._failing(log_dir):
                write_meta_properties(self._files, log_dir.path, owner)

    @contextlib.contextmanager
    def _failing(self, log_dir: LogDir) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            self.fail(log_dir.path, f"{log_dir.path} cannot be used: {e.strerror or e}")
            _log.error("%s", self.failures[log_dir.path])

    def _must_claim(self, log_dir: LogDir, owner: MetaProperties) -> bool:
        found = None
        with self._failing(log_dir):
            found = read_meta_properties(self._files, log_dir.path)
        if found is None:
            return log_dir in self.live
        if found == UNOWNED:
            _log.warning(
                "%s/%s is empty: writing it again for broker %d of cluster %s",
                log_dir.path,
                names.META_PROPERTIES,
                owner.broker_id,
                owner.cluster_id,
            )
            return True
        if found.broker_id != owner.broker_id:
            raise KlammError(f"{log_dir.path} belongs to broker {found.broker_id}, not to {owner.broker_id}")
        if found.cluster_id not in (None, owner.cluster_id):
            raise KlammError(f"{log_dir.path} belongs to cluster {found.cluster_id}, not to {owner.cluster_id}")
        return found.cluster_id is None

    def release(self) -> None:
        for log_dir in self._opened:
            log_dir.release()
