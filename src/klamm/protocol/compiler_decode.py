"""Compiles one version of a message into one Python function that reads it.

Structs and arrays are written out inline, so a message costs one call. Neighbouring fixed-size fields, the length that
follows them and the first byte of a varint are read by one precompiled `Struct.unpack_from`, straight into the slots
of the object. Every count is checked against the bytes that remain (count times the smallest element), against
`MAX_ELEMENTS` and against the message's memory budget before anything is built for it.

A sliced decoder is the same function as a generator: it yields whenever it has read another `SLICE_BYTES`. Records are
not counted, because they are not copied. Long arrays become `Chunked`, and all lists are also put into `held`, one row
per slice: dropping the rows one after the other frees the message in steps (`chunked`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from mmap import mmap
from struct import Struct as Format
from typing import Any

from klamm.protocol import runtime
from klamm.protocol.chunked import CHUNK, Chunked, Held, chunk_sizes
from klamm.protocol.declaration import Message
from klamm.protocol.schema import REFERENCE_COST, Slot, Type, cost, is_flexible, min_size, plain, plan, tagged

Decoder = Callable[[bytes | bytearray, int], tuple[Any, int]]
SlicedDecoder = Callable[[bytes | bytearray | mmap, int, Held], Generator[None, None, tuple[Any, int]]]
_NEW_ROW = "row = []; held.append(row); hold = row.append"


def compile_decoder(cls: type[Message], version: int) -> Decoder:
    """Compile a function (buf, pos) -> (message, end) for one version."""
    source, env = decoder_source(cls, version)
    exec(compile(source, f"<decode {cls.__name__} v{version}>", "exec"), env)
    decoder: Decoder = env["decode"]
    return decoder


def compile_sliced_decoder(cls: type[Message], version: int) -> SlicedDecoder:
    """Compile a generator function (buf, pos, held) that returns (message, end) after as many slices as it needs."""
    source, env = decoder_source(cls, version, sliced=True)
    exec(compile(source, f"<decode {cls.__name__} v{version} in slices>", "exec"), env)
    decoder: SlicedDecoder = env["decode"]
    return decoder


def decoder_source(cls: type[Message], version: int, *, sliced: bool = False) -> tuple[str, dict[str, Any]]:
    writer = _Writer(is_flexible(cls, version), sliced=sliced)
    layout = plan(cls, version)
    writer.struct(layout, "out", cls.__name__)
    writer.flush()
    parameters = "buf, pos, held" if sliced else "buf, pos"
    head = [f"def decode({parameters}):", "    size = len(buf)", f"    budget = {runtime.MEMORY_BUDGET}"]
    if sliced:
        # The second line makes it a generator even if the message has no array.
        head += [f"    limit = pos + {runtime.SLICE_BYTES}", "    if size < 0: yield", f"    {_NEW_ROW}"]
    return "\n".join([*head, *writer.lines, "    return out, pos", ""]), writer.env


class _Writer:
    """Emits the lines of one decoder. `run` holds fixed-size reads that have not been written out yet."""

    def __init__(self, flexible: bool, *, sliced: bool) -> None:
        self.flexible = flexible
        self.sliced = sliced
        self.lines: list[str] = []
        self.env: dict[str, Any] = {"new": object.__new__}
        for name in ("short", "bad_null", "bad_length", "bad_tag", "too_many", "uuid_of", "rest_of_uvarint"):
            self.env[name] = getattr(runtime, name)
        self.env |= {"read_uvarint": runtime.read_uvarint, "skip_tagged_fields": runtime.skip_tagged_fields}
        self.env["bytes_of"] = runtime.bytes_of
        if sliced:
            self.env |= {"chunk_sizes": chunk_sizes, "Chunked": Chunked}
            self.env["skip_in_slices"] = runtime.skip_tagged_fields_in_slices
        self.depth = 1
        self.run: list[tuple[str, str]] = []
        self.counter = itertools.count(1)

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """An indented block. Pending reads are written before it begins and before it ends."""
        self.flush()
        self.emit(head)
        self.depth += 1
        yield
        self.flush()
        self.depth -= 1

    def name(self, prefix: str) -> str:
        return f"{prefix}{next(self.counter)}"

    def constant(self, prefix: str, value: Any) -> str:
        for known, held in self.env.items():
            if held is value:
                return known
        name = self.name(prefix)
        self.env[name] = value
        return name

    def fixed(self, target: str, code: str) -> None:
        self.run.append((target, code))

    def flush(self) -> None:
        if not self.run:
            return
        targets = [target for target, _ in self.run]
        codes = "".join(code for _, code in self.run)
        self.run = []
        if codes == "B":
            self.emit(f"{targets[0]} = buf[pos]; pos += 1")
            return
        fmt = Format(">" + codes)
        reader = f"unpack_{codes.replace('?', 'o')}"
        self.env.setdefault(reader, fmt.unpack_from)
        self.emit(f"{', '.join(targets)}, = {reader}(buf, pos); pos += {fmt.size}")

    def struct(self, t: Type, target: str, name: str) -> None:
        """Make the object first and read into its slots; tagged fields come last, behind the plain ones."""
        assert t.struct is not None
        if "." in target:
            inner = self.name("s")
            self.struct(t, inner, name)
            self.emit_after(f"{target} = {inner}")
            return
        self.emit_after(f"{target} = new({self.constant(t.struct.__name__, t.struct)})")
        for slot in t.fields:
            if not slot.present or slot.tag is not None:
                self.emit_after(f"{target}.{slot.name} = {self.literal(slot.default)}")
        for slot in plain(t):
            self.value(slot.type, f"{target}.{slot.name}", f"{name}.{slot.name}")
        if self.flexible:
            self.tagged_section(tagged(t), target, name)

    def emit_after(self, line: str) -> None:
        """Emit a line after the pending reads: they may fill the object that it uses."""
        self.flush()
        self.emit(line)

    def literal(self, value: Any) -> str:
        if value is None or isinstance(value, bool | int | str | bytes) or value == ():
            return repr(value)
        return self.constant("default", value)

    def value(self, t: Type, target: str, name: str) -> None:
        if t.is_array:
            self.array(t, target, name)
        elif t.struct is not None:
            self.nullable_struct(t, target, name) if t.nullable else self.struct(t, target, name)
        elif t.code == "16s":
            self.fixed(target, "16s")
            self.emit_after(f"{target} = uuid_of({target})")
        elif t.code:
            self.fixed(target, t.code)
        else:
            self.variable(t, target, name)

    def nullable_struct(self, t: Type, target: str, name: str) -> None:
        mark = self.name("n")
        self.fixed(mark, "b")
        with self.block(f"if {mark} < 0:"):
            self.emit(f"{target} = None")
        with self.block("else:"):
            self.struct(t, target, name)

    def length(self, code: str) -> str:
        """Read a length or count into a variable: -1 is null in both encodings."""
        n = self.name("n")
        if not self.flexible:
            self.fixed(n, code)
            self.flush()
            return n
        self.fixed(n, "B")
        self.flush()
        self.emit(f"if {n} > 127: {n}, pos = rest_of_uvarint(buf, pos, {n})")
        self.emit(f"{n} -= 1")
        return n

    def null(self, t: Type, n: str, target: str, name: str) -> None:
        with self.block(f"if {n} < 0:"):
            self.emit(f"{target} = None" if t.nullable else f"bad_null({name!r})")

    def variable(self, t: Type, target: str, name: str) -> None:
        """A string, bytes or records."""
        assert t.kind is not None
        kind = t.kind.name
        n = self.length("h" if kind == "string" else "i")
        self.null(t, n, target, name)
        with self.block("else:"):
            end = self.name("e")
            self.emit(f"{end} = pos + {n}")
            self.emit(f"if {end} > size: short({n}, size - pos)")
            if kind == "string" and self.flexible:
                self.emit(f"if {n} > {runtime.STRING_MAX_BYTES}: bad_length({name!r}, {n})")
            copy = "bytes_of(buf, pos, {})" if self.sliced else "bytes(buf[pos:{}])"
            read = {"string": "buf[pos:{}].decode()", "bytes": copy}.get(kind, "memoryview(buf)[pos:{}]")
            self.emit(f"{target} = {read.format(end)}; pos = {end}")
            if self.sliced and kind == "records":
                self.emit(f"limit += {n}")

    def slice_ends(self) -> None:
        """Let a sliced decoder pause here: between two elements."""
        if self.sliced:
            self.emit("if pos > limit:")
            self.emit(f"    yield; limit = pos + {runtime.SLICE_BYTES}; {_NEW_ROW}")

    def array(self, t: Type, target: str, name: str) -> None:
        element = t.element
        assert element is not None
        n = self.length("i")
        self.null(t, n, target, name)
        with self.block("else:"):
            smallest = min_size(element, self.flexible)
            times = f" * {smallest}" if smallest > 1 else ""
            self.emit(f"if {n}{times} > size - pos: short({n}{times}, size - pos)")
            self.emit(f"budget -= {n} * {cost(element) + REFERENCE_COST}")
            self.emit(f"if budget < 0 or {n} > {runtime.MAX_ELEMENTS}: too_many({name!r}, {n})")
            if element.code and element.code not in ("16s", "?"):
                self.fixed_array(element.code, smallest, n, target)
            else:
                self.loop(element, n, target, name)

    def fixed_array(self, code: str, size: int, n: str, target: str) -> None:
        table = self.constant(f"unpack_{code}s_", runtime.unpackers(code))
        self.env.setdefault(f"format_{code}", partial(runtime.unpack_many, code))
        read = f"{table}[{n}](buf, pos) if {n} < {runtime.SMALL} else format_{code}({n}, buf, pos)"
        if not self.sliced:
            self.emit(f"{target} = [*({read})]; pos += {n} * {size}")
            return
        items, most = self.name("a"), runtime.SLICE_BYTES // size
        with self.block(f"if {n} <= {most}:"):
            self.emit(f"{items} = [*({read})]; pos += {n} * {size}; hold({items})")
        with self.block("else:"):
            part, chunks = self.name("n"), self.name("c")
            self.emit(f"{chunks} = []")
            with self.block(f"while {n}:"):
                self.emit(f"{part} = min({n}, {most}); {items} = format_{code}({part}, buf, pos)")
                self.emit(f"{n} -= {part}; pos += {part} * {size}; {chunks}.append({items}); hold({items})")
                self.slice_ends()
            self.emit(f"{items} = Chunked({chunks})")
        self.emit(f"{target} = {items}")

    def loop(self, element: Type, n: str, target: str, name: str) -> None:
        items, append = self.name("a"), self.name("append")
        if not self.sliced:
            self.emit(f"{items} = []; {append} = {items}.append")
            self.elements(element, n, append, name)
            self.emit(f"{target} = {items}")
            return
        chunks, part = self.name("c"), self.name("n")
        self.emit(f"{chunks} = []")
        with self.block(f"for {part} in ({n},) if {n} <= {CHUNK} else chunk_sizes({n}):"):
            self.emit(f"{items} = []; {append} = {items}.append; {chunks}.append({items}); hold({items})")
            self.elements(element, part, append, name)
        self.emit(f"{target} = {items} if {n} <= {CHUNK} else Chunked({chunks})")

    def elements(self, element: Type, n: str, append: str, name: str) -> None:
        item = self.name("v")
        with self.block(f"for _ in range({n}):"):
            self.slice_ends()
            self.value(element, item, name + "[]")
            self.emit_after(f"{append}({item})")

    def tagged_section(self, slots: list[Slot], target: str, name: str) -> None:
        n = self.name("t")
        self.fixed(n, "B")
        if not slots:
            skip = f"skip_tagged_fields(buf, pos, {n})"
            if self.sliced:
                skip += f" if {n} < 128 else (yield from skip_in_slices(buf, pos, {n}))"
            self.emit_after(f"if {n}: pos = {skip}")
            return
        with self.block(f"if {n}:"):
            self.emit(f"if {n} > 127: {n}, pos = rest_of_uvarint(buf, pos, {n})")
            self.emit(f"if {n} * 2 > size - pos: short({n} * 2, size - pos)")
            self.emit(f"if {n} > {runtime.MAX_TAGGED_FIELDS}: too_many({name + ' tagged fields'!r}, {n})")
            with self.block(f"for _ in range({n}):"):
                self.slice_ends()
                self.one_tagged(slots, target, name)

    def one_tagged(self, slots: list[Slot], target: str, name: str) -> None:
        tag, length, end = self.name("g"), self.name("n"), self.name("e")
        self.emit(
            f"{tag}, pos = read_uvarint(buf, pos); {length}, pos = read_uvarint(buf, pos); {end} = pos + {length}"
        )
        self.emit(f"if {end} > size: short({length}, size - pos)")
        for index, slot in enumerate(slots):
            with self.block(f"{'el' if index else ''}if {tag} == {slot.tag}:"):
                self.value(slot.stored, f"{target}.{slot.name}", f"{name}.{slot.name}")
                self.emit_after(f"if pos != {end}: bad_tag({tag})")
        with self.block("else:"):
            self.emit(f"pos = {end}")
