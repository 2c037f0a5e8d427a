"""Decoders as source files, for a compiler such as mypyc. Nothing is compiled yet."""

from __future__ import annotations

from functools import partial
from struct import Struct as Format
from typing import Any
from uuid import UUID

from klamm.protocol import runtime
from klamm.protocol.compiler_decode import decoder_source
from klamm.protocol.declaration import Message, Struct


def decoder_file(cls: type[Message], version: int) -> str:
    """Return the source of a module whose `decode(buf, pos)` decodes one version of a message."""
    source, constants = decoder_source(cls, version)
    modules = sorted({value.__module__ for value in constants.values() if _is_struct(value)})
    lines = [
        f'"""Decodes {cls.__name__} v{version}. Generated: do not edit."""',
        "",
        "from functools import partial",
        "from struct import Struct",
        "from uuid import UUID",
        "",
        "from klamm.protocol import runtime",
        *(f"import {module}" for module in modules),
        "",
        *(f"{name} = {_expression(value)}" for name, value in constants.items()),
        "",
        "",
        source,
    ]
    return "\n".join(lines)


def _is_struct(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Struct)


def _expression(value: Any) -> str:
    """Return the expression that yields a constant of a decoder."""
    if value is object.__new__:
        return "object.__new__"
    if _is_struct(value):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, UUID):
        return f"UUID({str(value)!r})"
    if isinstance(value, partial):
        return f"partial(runtime.{value.func.__name__}, {value.args[0]!r})"
    if isinstance(value, tuple | list):
        return f"runtime.unpackers({value[-1].__self__.format[-1]!r})"
    if isinstance(getattr(value, "__self__", None), Format):
        return f"Struct({value.__self__.format!r}).unpack_from"
    name = getattr(value, "__name__", "")
    if getattr(runtime, name, None) is value:
        return f"runtime.{name}"
    raise TypeError(f"{value!r} has no expression in a decoder file")
