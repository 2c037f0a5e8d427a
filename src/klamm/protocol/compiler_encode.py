"""Compiles one version of a message into one Python function that writes it.

Structs and arrays are written out inline. Neighbouring fixed-size fields, the length that follows them and empty
sections of tagged fields become one precompiled `Struct.pack`. The function gathers pieces in a list and joins them
once; large records and bytes are never joined but stay the caller's objects between two joined parts.

A sliced encoder is the same function as a generator: it yields after `SLICE_ELEMENTS` elements and joins the pieces
that it has. It puts the lists of the message into `held`, one row per slice, so that the message can be freed in steps
(`chunked`).

A template is the same function without some fields of the message: it returns the bytes between these holes, into which
the caller puts bytes that it already has.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from struct import Struct as Format
from typing import Any

from klamm.protocol import runtime
from klamm.protocol.chunked import CHUNK, Held, pieces
from klamm.protocol.declaration import BytesLike, Message
from klamm.protocol.schema import Slot, Type, is_flexible, plain, plan, tagged

Encoder = Callable[[Any], list[BytesLike]]
SlicedEncoder = Callable[[Any, Held], Generator[None, None, list[BytesLike]]]
Template = Callable[[Any], list[list[BytesLike]]]
_NEW_ROW = "row = []; held.append(row); hold = row.append"
_MESSAGE = "error_message"
"""Fields whose names end like this hold error messages, which may quote names of 32 KiB. Long ones are cut."""


def compile_encoder(cls: type[Message], version: int) -> Encoder:
    """Compile a function message -> parts for one version."""
    source, env = encoder_source(cls, version)
    exec(compile(source, f"<encode {cls.__name__} v{version}>", "exec"), env)
    encoder: Encoder = env["encode"]
    return encoder


def compile_sliced_encoder(cls: type[Message], version: int) -> SlicedEncoder:
    """Compile a generator function (message, held) that returns the parts after as many slices as it needs."""
    source, env = encoder_source(cls, version, sliced=True)
    exec(compile(source, f"<encode {cls.__name__} v{version} in slices>", "exec"), env)
    encoder: SlicedEncoder = env["encode"]
    return encoder


def compile_template(cls: type[Message], version: int, holes: tuple[str, ...]) -> Template:
    """Compile a function message -> parts before, between and after the fields `holes`, given in wire order."""
    fields = [slot.name for slot in plain(plan(cls, version)) if slot.name in holes]
    if fields != list(holes):
        raise ValueError(f"{cls.__name__} v{version} does not have the fields {', '.join(holes)} in this order")
    source, env = encoder_source(cls, version, holes=holes)
    exec(compile(source, f"<encode {cls.__name__} v{version} around {' and '.join(holes)}>", "exec"), env)
    template: Template = env["encode"]
    return template


def encoder_source(
    cls: type[Message], version: int, *, sliced: bool = False, holes: tuple[str, ...] | None = None
) -> tuple[str, dict[str, Any]]:
    writer = _Writer(is_flexible(cls, version), sliced=sliced)
    writer.struct(plan(cls, version), "msg", holes or ())
    writer.flush()
    head = [f"def encode({'msg, held' if sliced else 'msg'}):", "    out = []; write = out.append; parts = []"]
    if sliced:
        # The second line makes it a generator even if the message has no array.
        head += ["    steps = 0", "    if steps: yield", f"    {_NEW_ROW}"]
    if holes is not None:
        head.append("    sections = []")
        tail = ["    if out: parts.append(join(out))", "    sections.append(parts); return sections", ""]
    else:
        tail = ["    if out: parts.append(join(out))", "    return parts", ""]
    return "\n".join([*head, *writer.lines, *tail]), writer.env


class _Writer:
    """Emits the lines of one encoder. `run` holds fixed-size values that have not been written out yet."""

    def __init__(self, flexible: bool, *, sliced: bool) -> None:
        self.flexible = flexible
        self.sliced = sliced
        self.lines: list[str] = []
        self.env: dict[str, Any] = {"join": b"".join, "LENGTH": runtime.COMPACT_LENGTH, "pieces": pieces}
        for name in ("uvarint", "compact_string_length", "records_length", "put_records", "shortened"):
            self.env[name] = getattr(runtime, name)
        self.depth = 1
        self.run: list[tuple[str, str]] = []
        self.counter = itertools.count(1)
        self.sink = "write"

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """An indented block. Pending values are written before it begins and before it ends."""
        self.flush()
        self.emit(head)
        self.depth += 1
        yield
        self.flush()
        self.depth -= 1

    def name(self, prefix: str) -> str:
        return f"{prefix}{next(self.counter)}"

    def fixed(self, expression: str, code: str) -> None:
        self.run.append((expression, code))

    def flush(self) -> None:
        if not self.run:
            return
        values = ", ".join(expression for expression, _ in self.run if expression)
        codes = "".join(code for _, code in self.run)
        self.run = []
        if not values:
            self.emit(f"{self.sink}({bytes(len(codes))!r})")
            return
        packer = f"pack_{codes.replace('?', 'o')}"
        self.env.setdefault(packer, Format(">" + codes).pack)
        self.emit(f"{self.sink}({packer}({values}))")

    def struct(self, t: Type, source: str, holes: tuple[str, ...] = ()) -> None:
        for slot in plain(t):
            if slot.name in holes:
                self.flush()
                self.emit("if out: parts.append(join(out)); out.clear()")
                self.emit("sections.append(parts); parts = []")
            else:
                self.value(slot.type, f"{source}.{slot.name}")
        if self.flexible:
            self.tagged_section(tagged(t), source)

    def value(self, t: Type, source: str) -> None:
        if t.is_array:
            self.array(t, source)
        elif t.struct is not None:
            self.nested(t, source)
        elif t.code == "16s":
            self.fixed(f"{source}.bytes", "16s")
        elif t.code:
            self.fixed(source, t.code)
        else:
            self.variable(t, source)

    def nested(self, t: Type, source: str) -> None:
        inner = self.name("s")
        self.emit(f"{inner} = {source}")
        if not t.nullable:
            self.struct(t, inner)
            return
        with self.block(f"if {inner} is None:"):
            self.emit(f"{self.sink}(b'\\xff')")
        with self.block("else:"):
            self.fixed("1", "b")
            self.struct(t, inner)

    @contextmanager
    def not_null(self, t: Type, value: str, code: str) -> Iterator[None]:
        """The block for a value that is not null. If null is allowed, the other branch writes it."""
        if not t.nullable:
            yield
            return
        self.flush()
        with self.block(f"if {value} is None:"):
            self.fixed("" if self.flexible else "-1", "x" if self.flexible else code)
        with self.block("else:"):
            yield

    def variable(self, t: Type, source: str) -> None:
        assert t.kind is not None
        value, n = self.name("v"), self.name("n")
        kind = t.kind.name
        code = "h" if kind == "string" else "i"
        self.emit(f"{value} = {source}")
        with self.not_null(t, value, code):
            if kind == "string":
                encoded = f"{value}.encode()"
                self.emit(f"{value} = {f'shortened({encoded})' if source.endswith(_MESSAGE) else encoded}")
            self.emit(f"{n} = records_length({value})" if kind == "records" else f"{n} = len({value})")
            self.length(n, code, "compact_string_length({})" if kind == "string" else "uvarint({} + 1)")
            self.flush()
            if self.sliced and kind != "records":
                self.emit(f"steps += {n} >> 8")
            if kind in ("records", "bytes") and self.sink == "write":
                self.emit(f"put_records(parts, out, {value})")
            else:
                self.emit(f"{self.sink}({value})")

    def length(self, n: str, code: str, long_form: str) -> None:
        if not self.flexible:
            self.fixed(n, code)
            return
        self.flush()
        self.emit(f"{self.sink}(LENGTH[{n}] if {n} < 127 else {long_form.format(n)})")

    def array(self, t: Type, source: str) -> None:
        element = t.element
        assert element is not None
        value, n = self.name("v"), self.name("n")
        self.emit(f"{value} = {source}")
        with self.not_null(t, value, "i"):
            self.emit(f"{n} = len({value})")
            if element.code and element.code != "16s":
                self.fixed_array(element.code, value, n)
                return
            self.length(n, "i", "uvarint({} + 1)")
            if not self.is_sliced_here:
                self.elements(element, value)
                return
            piece = self.name("p")
            with self.block(f"for {piece} in ({value},) if {n} <= {CHUNK} else pieces({value}):"):
                self.emit(f"hold({piece})")
                self.elements(element, piece)

    @property
    def is_sliced_here(self) -> bool:
        """Whether the encoder may pause: not inside a tagged field."""
        return self.sliced and self.sink == "write"

    def elements(self, element: Type, source: str) -> None:
        item = self.name("o")
        with self.block(f"for {item} in {source}:"):
            self.slice_ends()
            self.value(element, item)

    def slice_ends(self) -> None:
        """Let a sliced encoder pause here: between two elements."""
        if self.is_sliced_here:
            self.emit("steps += 1")
            with self.block(f"if steps > {runtime.SLICE_ELEMENTS}:"):
                self.emit("if out: parts.append(join(out)); out.clear()")
                self.emit(f"yield; steps = 0; {_NEW_ROW}")

    def fixed_array(self, code: str, value: str, n: str) -> None:
        """Write a short array of numbers with one pack, its count included."""
        self.flush()
        length_code, plus = ("B", " + 1") if self.flexible else ("i", "")
        suffix = f"{length_code}{code}".replace("?", "o")
        self.env[f"pack_array_{suffix}"] = runtime.packers(length_code, code)
        self.env[f"pack_long_{suffix}"] = _long_array(code, self.flexible)
        ready = f"pack_array_{suffix}[{n}]({n}{plus}, *{value})"
        self.emit(f"{self.sink}({ready} if {n} < {runtime.SMALL} else pack_long_{suffix}({value}))")

    def tagged_section(self, slots: list[Slot], source: str) -> None:
        if not slots:
            self.fixed("", "x")
            return
        self.flush()
        fields, value = self.name("fields"), self.name("v")
        self.emit(f"{fields} = []")
        for slot in slots:
            self.emit(f"{value} = {source}.{slot.name}")
            with self.block(f"if {self.differs(slot, value)}:"):
                self.tagged_field(slot, value, fields)
        with self.block(f"if {fields}:"):
            self.emit(f"{self.sink}(uvarint(len({fields}))); {self.sink}(join({fields}))")
        with self.block("else:"):
            self.emit(f"{self.sink}(b'\\x00')")

    def differs(self, slot: Slot, value: str) -> str:
        """Return the test whether a tagged field must be written: its value differs from the default."""
        default = self.name("default")
        if slot.type.struct is not None:
            self.env[default] = slot.type.struct()
            return f"{value} is not None and {value} != {default}"
        if slot.type.is_array and slot.default is not None:
            return value if not slot.type.nullable else f"{value} is None or {value}"
        self.env[default] = slot.default
        return f"{value} != {default}"

    def tagged_field(self, slot: Slot, value: str, fields: str) -> None:
        outer, body = self.sink, self.name("field")
        self.sink = f"{body}.append"
        self.emit(f"{body} = []")
        self.value(slot.stored, value)
        self.flush()
        self.sink = outer
        self.emit(f"{body} = join({body})")
        self.emit(f"{fields}.append({_tag_bytes(slot)!r} + uvarint(len({body})) + {body})")


def _tag_bytes(slot: Slot) -> bytes:
    assert slot.tag is not None
    return runtime.uvarint(slot.tag)


def _long_array(code: str, flexible: bool) -> Callable[[Any], bytes]:
    def pack(values: Any) -> bytes:
        n = len(values)
        head = runtime.uvarint(n + 1) if flexible else n.to_bytes(4, "big")
        return head + Format(f">{n}{code}").pack(*values)

    return pack
