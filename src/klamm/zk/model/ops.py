"""ZooKeeper's operations, results, stats, watch events and errors as frozen values.

The controller's core yields these, `ZnodeTree` executes them, `ZkSession` sends them. No I/O here. Container and TTL
nodes, quotas and persistent watches have no value here: klamm does not use them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from enum import IntEnum
from typing import ClassVar, Final, NamedTuple, TypeAlias

from klamm.lazy_dataclass import lazy_dataclass

ANY_VERSION: Final = -1
"""The version that matches every version of a znode."""


class Code(IntEnum):
    """ZooKeeper's error codes, as in a reply header."""

    OK = 0
    SYSTEM_ERROR = -1
    RUNTIME_INCONSISTENCY = -2
    DATA_INCONSISTENCY = -3
    CONNECTION_LOSS = -4
    MARSHALLING_ERROR = -5
    UNIMPLEMENTED = -6
    OPERATION_TIMEOUT = -7
    BAD_ARGUMENTS = -8
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    INVALID_ACL = -114
    AUTH_FAILED = -115
    RECONFIG_DISABLED = -123
    THROTTLED_OP = -127


class Perms(IntEnum):
    READ = 1
    WRITE = 2
    CREATE = 4
    DELETE = 8
    ADMIN = 16
    ALL = 31


class Id(NamedTuple):
    """An identity of a connection, or of an access rule."""

    scheme: str
    id: str


class Acl(NamedTuple):
    perms: int
    scheme: str
    id: str


OPEN_ACL: Final = (Acl(Perms.ALL, "world", "anyone"),)


class Stat(NamedTuple):
    """A znode's stat in the order of the wire."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: int
    data_length: int
    num_children: int
    pzxid: int


# --- operations ------------------------------------------------------------------------------------------------------


@lazy_dataclass(frozen=True, slots=True)
class Create:
    """Creates a znode; a sequential one gets the parent's count of creations as ten digits behind `path`."""

    path: str
    data: bytes | None = None
    ephemeral: bool = False
    sequential: bool = False
    acl: tuple[Acl, ...] = OPEN_ACL


@lazy_dataclass(frozen=True, slots=True)
class SetData:
    path: str
    data: bytes | None
    version: int = ANY_VERSION


@lazy_dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int = ANY_VERSION


@lazy_dataclass(frozen=True, slots=True)
class Check:
    """Fails its multi unless the znode exists with this data version."""

    path: str
    version: int = ANY_VERSION


@lazy_dataclass(frozen=True, slots=True)
class SetAcl:
    path: str
    acl: tuple[Acl, ...]
    version: int = ANY_VERSION


@lazy_dataclass(frozen=True, slots=True)
class GetData:
    """Reads data and stat. With `watch`, the next change or deletion is reported once; a missing znode is not
    watched."""

    path: str
    watch: bool = False


@lazy_dataclass(frozen=True, slots=True)
class Exists:
    """Reads the stat. With `watch`, creation, change or deletion is reported once, also for a missing znode."""

    path: str
    watch: bool = False


@lazy_dataclass(frozen=True, slots=True)
class GetChildren:
    """Reads names of children. With `watch`, the next added or removed child or the znode's deletion is reported
    once."""

    path: str
    watch: bool = False


@lazy_dataclass(frozen=True, slots=True)
class GetAcl:
    path: str


WriteOp: TypeAlias = Create | SetData | Delete | Check
"""Operations that a multi may contain."""
ReadOp: TypeAlias = GetData | Exists | GetChildren


# --- results ---------------------------------------------------------------------------------------------------------


@lazy_dataclass(frozen=True, slots=True)
class CreateResult:
    """`path` is the actual path, with the number of a sequential znode.

    A create inside a session's multi has no stat.
    """

    path: str
    stat: Stat | None = None


@lazy_dataclass(frozen=True, slots=True)
class SetDataResult:
    stat: Stat


@lazy_dataclass(frozen=True, slots=True)
class DeleteResult:
    pass


@lazy_dataclass(frozen=True, slots=True)
class CheckResult:
    pass


@lazy_dataclass(frozen=True, slots=True)
class ErrorResult:
    """An operation of a failed multi: OK before the one that failed, its own code, RUNTIME_INCONSISTENCY after it."""

    code: Code


@lazy_dataclass(frozen=True, slots=True)
class GetDataResult:
    data: bytes | None
    stat: Stat


@lazy_dataclass(frozen=True, slots=True)
class ExistsResult:
    """`stat` is None if the znode does not exist, which is not an error."""

    stat: Stat | None


@lazy_dataclass(frozen=True, slots=True)
class GetChildrenResult:
    children: tuple[str, ...]
    stat: Stat


@lazy_dataclass(frozen=True, slots=True)
class GetAclResult:
    acl: tuple[Acl, ...]
    stat: Stat


WriteResult: TypeAlias = CreateResult | SetDataResult | DeleteResult | CheckResult
MultiResult: TypeAlias = WriteResult | ErrorResult
ReadResult: TypeAlias = GetDataResult | ExistsResult | GetChildrenResult


# --- watches ---------------------------------------------------------------------------------------------------------


class EventType(IntEnum):
    CREATED = 1
    DELETED = 2
    DATA_CHANGED = 3
    CHILDREN_CHANGED = 4


@lazy_dataclass(frozen=True, slots=True)
class WatchEvent:
    type: EventType
    path: str


# --- errors ----------------------------------------------------------------------------------------------------------


class ZkError(Exception):
    """An operation that ZooKeeper refused, or whose answer was lost."""

    code: ClassVar[Code] = Code.SYSTEM_ERROR

    def __init__(self, path: str = "", message: str = "") -> None:
        self.path = path
        super().__init__(message or f"{self.code.name} {path}".rstrip())

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and str(other) == str(self)

    def __hash__(self) -> int:
        return hash((type(self), str(self)))


class NoNode(ZkError):
    code = Code.NO_NODE


class NodeExists(ZkError):
    code = Code.NODE_EXISTS


class BadVersion(ZkError):
    code = Code.BAD_VERSION


class NotEmpty(ZkError):
    code = Code.NOT_EMPTY


class NoChildrenForEphemerals(ZkError):
    code = Code.NO_CHILDREN_FOR_EPHEMERALS


class NoAuth(ZkError):
    code = Code.NO_AUTH


class InvalidAcl(ZkError):
    code = Code.INVALID_ACL


class AuthFailed(ZkError):
    code = Code.AUTH_FAILED


class BadArguments(ZkError):
    code = Code.BAD_ARGUMENTS


class Unimplemented(ZkError):
    code = Code.UNIMPLEMENTED


class RuntimeInconsistency(ZkError):
    code = Code.RUNTIME_INCONSISTENCY


class MarshallingError(ZkError):
    code = Code.MARSHALLING_ERROR


class SessionExpired(ZkError):
    """The session is over and its ephemeral znodes are gone. The operation did not and will not take effect."""

    code = Code.SESSION_EXPIRED


class ConnectionLoss(ZkError):
    """The answer was lost with the connection. A write may have taken effect; only a read can show that."""

    code = Code.CONNECTION_LOSS


class RequestTooLarge(ZkError):
    """The request exceeds ZooKeeper's limit (jute.maxbuffer).

    It was not sent, because the server would close the connection.
    """

    code = Code.MARSHALLING_ERROR


class ThrottledOp(ZkError):
    """The server has reached a memory limit; the operation did not take effect."""

    code = Code.THROTTLED_OP


class NotLogged(ZkError):
    """The embedded server's log accepts no more changes, so the change was not made."""

    code = Code.SYSTEM_ERROR


@lazy_dataclass(frozen=True, slots=True)
class MultiFailure:
    """The operation that made a multi fail, and its error. No operation took effect."""

    index: int
    op: WriteOp
    error: ZkError
    results: tuple[MultiResult, ...] = field(repr=False)


class MultiFailed(ZkError):
    """A multi failed and nothing took effect. `index`, `op` and `error` name the operation that made it fail."""

    def __init__(self, failure: MultiFailure) -> None:
        self.failure = failure
        self.index = failure.index
        self.op = failure.op
        self.error = failure.error
        super().__init__(failure.op.path, f"operation {failure.index} of the multi failed: {failure.error}")


_OP_OVERHEAD: Final = 80
"""Size of header, lengths, version or flags, and the ACL that allows everything."""
_ERRORS: Final[dict[int, type[ZkError]]] = {
    cls.code: cls
    for cls in (
        NoNode,
        NodeExists,
        BadVersion,
        NotEmpty,
        NoChildrenForEphemerals,
        NoAuth,
        InvalidAcl,
        AuthFailed,
        BadArguments,
        Unimplemented,
        RuntimeInconsistency,
        MarshallingError,
        SessionExpired,
        ConnectionLoss,
        ThrottledOp,
    )
}


def error_for(code: int, path: str = "") -> ZkError:
    """Return the error for a code; the message of an unknown code has its number."""
    cls = _ERRORS.get(code)
    return cls(path) if cls is not None else ZkError(path, f"ZooKeeper error {code} {path}".rstrip())


def multi_failure(ops: Sequence[WriteOp], results: tuple[MultiResult, ...]) -> MultiFailure | None:
    """Return the operation that made a multi fail: the first with a code other than OK. None if it succeeded."""
    for index, (op, result) in enumerate(zip(ops, results, strict=True)):
        if isinstance(result, ErrorResult) and result.code != Code.OK:
            return MultiFailure(index, op, error_for(result.code, op.path), results)
    return None


def request_size(op: WriteOp) -> int:
    """Return an upper bound for its size in a multi, in bytes."""
    path, kind = op.path, type(op)
    data = op.data if kind is SetData or kind is Create else None  # type: ignore[union-attr]
    return (len(path) if path.isascii() else len(path.encode())) + (len(data) if data else 0) + _OP_OVERHEAD
