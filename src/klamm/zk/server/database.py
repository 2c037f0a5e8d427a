"""The tree behind its log. A change is encoded, validated, logged, then applied.

The server changes the tree through this class alone. A change that cannot be encoded or logged is therefore never made:
the tree undoes it if its journal raises.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence
from typing import Final

from klamm.zk.model.jute import OpCode
from klamm.zk.model.ops import Id, NotLogged, RequestTooLarge
from klamm.zk.model.tree import Journal, ZnodeTree
from klamm.zk.server.committer import Committer
from klamm.zk.server.log_records import LogRecord, encode_record
from klamm.zk.server.request_processor import execute_write

_TIMEOUT: Final = struct.Struct(">i")


class LoggedTree:
    """Raises RequestTooLarge for a change that does not fit the log, NotLogged once the log has ended."""

    def __init__(self, tree: ZnodeTree, committer: Committer) -> None:
        self._tree = tree
        self._committer = committer

    def create_session(self, session_id: int, timeout_ms: int, monotonic_ms: int, password: bytes) -> None:
        journal = self._journal(0, session_id, OpCode.CREATE_SESSION, (), _TIMEOUT.pack(timeout_ms) + password)
        self._tree.create_session(session_id, timeout_ms, monotonic_ms, password, journal)

    def close_session(self, session_id: int, now_ms: int) -> None:
        journal = self._journal(0, session_id, OpCode.CLOSE_SESSION, (), b"")
        self._tree.close_session(session_id, now_ms, journal)

    def write(self, session_id: int, opcode: int, body: bytes, now_ms: int, auth: Sequence[Id]) -> bytes:
        """Return the body of the answer. Raises the `ZkError` to answer with."""
        journal = self._journal(now_ms, session_id, opcode, auth, body)
        return execute_write(self._tree, session_id, opcode, body, now_ms, auth, journal)

    def _journal(self, now_ms: int, session_id: int, opcode: int, auth: Sequence[Id], body: bytes) -> Journal:
        """Encode the next change and return a function that logs it."""
        zxid = self._tree.last_zxid + 1
        try:
            record = encode_record(LogRecord(zxid, now_ms, session_id, opcode, auth, body))
        except RequestTooLarge:
            raise
        except Exception as error:
            self._committer.fail(OSError(errno.EINVAL, f"a change cannot be encoded: {error!r}"))
            raise NotLogged(message="a change cannot be encoded") from error

        def append(actual_zxid: int) -> None:
            assert actual_zxid == zxid, "a change is encoded under the zxid that it gets"
            self._committer.append(record)

        return append
