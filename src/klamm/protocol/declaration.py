"""The declaration of messages: a dataclass is the schema of a message, and a version is a property of a field.

A message is one class for all its versions. Fields are encoded in the order of their declaration. An annotation is the
type on the wire, and also the type that the type checker sees. `since` states in which versions a field exists.
Encoders and decoders are compiled from the class once per version, at the first use of that version (`compiler_decode`,
`compiler_encode`), so importing a message costs almost nothing.

    @message
    class HeartbeatRequest(Message):
        KEY = 12
        FLEXIBLE = 4
        VERSIONS = range(0, 5)
        group_id: String
        generation_id: Int32
        member_id: String
        group_instance_id: NullableString = since(3, default=None)

Decoding raises only ProtocolError: an error of the peer. Encoding a value that does not fit its type raises ValueError:
an error of the caller. A field that a version does not have is left out when encoding and reads as its default when
decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import MISSING, dataclass, field, fields
from mmap import mmap
from typing import Annotated, Any, ClassVar, Final, TypeVar, cast, dataclass_transform
from uuid import UUID

from klamm.protocol.chunked import Held

T = TypeVar("T")
S = TypeVar("S", bound="Struct")

NEVER: Final = 32767
"""Stands for the first flexible version of a message that has no flexible version."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A primitive of the protocol. `code` is its struct format when its size is fixed."""

    name: str
    code: str = ""
    size: int = 0
    nullable: bool = False


BytesLike = bytes | bytearray | memoryview
Received = bytes | bytearray | memoryview | mmap
"""Bytes that are decoded. Very large frames are received into their own pages."""

Bool = Annotated[bool, Kind("bool", "?", 1)]
Int8 = Annotated[int, Kind("int8", "b", 1)]
Int16 = Annotated[int, Kind("int16", "h", 2)]
Int32 = Annotated[int, Kind("int32", "i", 4)]
Int64 = Annotated[int, Kind("int64", "q", 8)]
UInt16 = Annotated[int, Kind("uint16", "H", 2)]
UInt32 = Annotated[int, Kind("uint32", "I", 4)]
Float64 = Annotated[float, Kind("float64", "d", 8)]
Uuid = Annotated[UUID, Kind("uuid", "16s", 16)]
String = Annotated[str, Kind("string")]
NullableString = Annotated[str | None, Kind("string", nullable=True)]
Bytes = Annotated[bytes, Kind("bytes")]
NullableBytes = Annotated[bytes | None, Kind("bytes", nullable=True)]
Records = Annotated[BytesLike | None, Kind("records", nullable=True)]
"""Record batches: decoded as a memoryview of the frame, encoded without a copy."""
RecordSlices = Annotated[BytesLike | tuple[BytesLike, ...] | None, Kind("records", nullable=True)]
"""Records that may be written from several pieces; they decode as one memoryview."""
Array = Annotated[Sequence[T], Kind("array")]
"""Encoders accept any sequence; decoders return lists."""
NullableArray = Annotated[Sequence[T] | None, Kind("array", nullable=True)]


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions in which a field exists, the first in which it may be null, and the tag of a tagged field."""

    since: int = 0
    until: int = NEVER
    nullable: int | None = None
    tag: int | None = None

    def __contains__(self, version: int) -> bool:
        return self.since <= version <= self.until


ALWAYS: Final = Versions()


def since(
    version: int, *, until: int = NEVER, default: Any = MISSING, nullable: int | None = None, tag: int | None = None
) -> Any:
    """Declare a field of the versions `version..until`; in others it is not written and reads as `default`.

    `nullable` is the first version that allows null, if not all versions do. A tagged field is written only when it
    differs from its default; a tagged struct is `X | None = since(..., tag=n, default=None)`, and None means its
    defaults.
    """
    versions = Versions(version, until, nullable, tag)
    if default is MISSING:
        return field(metadata={"versions": versions})
    return field(default=default, metadata={"versions": versions})


class Struct:
    """A part of a message, or (as Message) a whole one. `__init__` is made at the first construction of each class."""

    __slots__: tuple[str, ...] = ()

    def __init__(self, **values: Any) -> None:
        cls = type(self)
        cls.__init__ = _make_init(cls)  # type: ignore[method-assign]
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"


class Message(Struct):
    """A request or a response: its API key, its first flexible version and the versions the class can parse."""

    __slots__ = ()

    KEY: ClassVar[int] = -1
    FLEXIBLE: ClassVar[int] = NEVER
    VERSIONS: ClassVar[range] = range(0)
    DECODERS: ClassVar[dict[int, Callable[[bytes | bytearray, int], tuple[Any, int]]]]
    ENCODERS: ClassVar[dict[int, Callable[[Any], list[BytesLike]]]]
    SLICED_DECODERS: ClassVar[
        dict[int, Callable[[bytes | bytearray | mmap, int, Held], Generator[None, None, tuple[Any, int]]]]
    ]
    SLICED_ENCODERS: ClassVar[dict[int, Callable[[Any, Held], Generator[None, None, list[BytesLike]]]]]
    TEMPLATES: ClassVar[dict[tuple[int, tuple[str, ...]], Callable[[Any], list[list[BytesLike]]]]]


@dataclass_transform(kw_only_default=True, field_specifiers=(since,))
def message(cls: type[S]) -> type[S]:
    """Make a class of annotated fields a struct of the protocol.

    Slots, keyword-only construction, `dataclasses` support.
    """
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # else dataclasses derives one from the signature: the slowest part of an import
    made = dataclass(init=False, repr=False, eq=False, match_args=False, slots=True, kw_only=True)(cls)
    if issubclass(made, Message):
        made.DECODERS = {}
        made.ENCODERS = {}
        made.SLICED_DECODERS = {}
        made.SLICED_ENCODERS = {}
        made.TEMPLATES = {}
    return made


def _make_init(cls: type[Struct]) -> Callable[..., None]:
    env: dict[str, Any] = {}
    parameters, body = [], []
    for f in fields(cast(Any, cls)):
        if f.default is MISSING:
            parameters.append(f.name)
        else:
            env[f"default_{f.name}"] = f.default
            parameters.append(f"{f.name}=default_{f.name}")
        body.append(f"self.{f.name} = {f.name}")
    star = ", *, " if parameters else ""
    exec(f"def __init__(self{star}{', '.join(parameters)}):\n    {'; '.join(body) or 'pass'}\n", env)
    init: Callable[..., None] = env["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init
