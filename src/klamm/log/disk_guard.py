"""Failures of a log's disk, as error codes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from klamm.errors import ErrorCode, ProtocolError
from klamm.log.files import is_exhausted
from klamm.log.indexes import CorruptIndexError
from klamm.log.log_environment import LogEnvironment

_log = logging.getLogger(__name__)
T = TypeVar("T")
TOO_MANY_FILES: Final = "the broker has too many open files"


class DiskGuard:
    """Owner: the `Log`. Reports a failed disk to the host once; from then on `is_failed` is True."""

    __slots__ = ("_directory", "_env", "_log_dir", "is_failed")

    def __init__(self, env: LogEnvironment, log_dir: str, directory: str) -> None:
        self._env = env
        self._log_dir = log_dir
        self._directory = directory
        self.is_failed = False

    def set_failed(self, is_failed: bool) -> None:
        """Follow the log directory, which was taken offline or came back."""
        self.is_failed = is_failed

    def moved_to(self, directory: str) -> None:
        self._directory = directory

    def run(self, doing: str, action: Callable[[], T]) -> T | ErrorCode:
        """Run `action`; `doing` says what it does, as in "appending to".

        If the disk fails, take the directory offline and return KAFKA_STORAGE_ERROR.
        """
        if self.is_failed:
            return ErrorCode.KAFKA_STORAGE_ERROR
        try:
            return action()
        except (OSError, ProtocolError, CorruptIndexError) as e:
            return self.error_code(e, doing)

    def done(self, doing: str, action: Callable[[], object]) -> ErrorCode:
        """Like `run`, without a result."""
        result = self.run(doing, action)
        return result if isinstance(result, ErrorCode) else ErrorCode.NONE

    def error_code(self, error: Exception, doing: str) -> ErrorCode:
        """Report an error that was raised by the files of the log."""
        if isinstance(error, OSError):
            self.failed(error, doing)
            return ErrorCode.KAFKA_STORAGE_ERROR
        _log.error("corrupt bytes found while %s %s: %s", doing, self._directory, error)
        return ErrorCode.CORRUPT_MESSAGE

    def failed(self, error: OSError, doing: str) -> str:
        """Report a failure of the disk; return the message for the client."""
        if is_exhausted(error):
            _log.warning("too many open files while %s %s; the client may retry", doing, self._directory)
            self._env.pool.close_idle()
            return TOO_MANY_FILES
        self.is_failed = True
        self._env.host.failed(self._log_dir, error, f"{doing} {self._directory}")
        return f"the disk failed: {error.strerror or error}"
