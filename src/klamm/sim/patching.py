"""Builds a mutant into loaded modules temporarily: the code of functions is replaced, and restored afterwards.

A run with an installed mutant (`mutants.install`) needs its own process, which takes longer to start than an aimed
scenario takes to run.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from klamm.sim.mutant import Mutant


class CannotPatchError(ValueError):
    """The mutant changes more than the code of functions."""


@contextmanager
def patched(mutant: Mutant) -> Iterator[None]:
    """Raise CannotPatchError if the mutant changes anything but the code of functions."""
    changes = [change for each in (mutant, *mutant.beside) for change in _changes(each)]
    before = [(function, function.__code__) for function, _ in changes]
    try:
        for function, code in changes:
            function.__code__ = code
        yield
    finally:
        for function, code in before:
            function.__code__ = code


def _changes(mutant: Mutant) -> list[tuple[FunctionType, CodeType]]:
    module = importlib.import_module(mutant.module)
    assert module.__file__ is not None
    source = changed = Path(module.__file__).read_text()
    for old, new in ((mutant.old, mutant.new), *mutant.also):
        if old not in changed:
            raise ValueError(f"{mutant.module} has no text {old!r}")
        changed = changed.replace(old, new)
    before, after = (_codes(compile(text, module.__file__, "exec")) for text in (source, changed))
    if before.keys() != after.keys():
        raise CannotPatchError(f"{mutant.module}: a function was added or removed")
    different = [name for name in before if _fingerprint(before[name]) != _fingerprint(after[name])]
    return [(_function(module, name), after[name]) for name in different]


def _codes(code: CodeType) -> dict[str, CodeType]:
    """Return the code of the module, its classes and their methods by qualified name, without nested functions."""
    found = {code.co_qualname: code}
    if not _is_function(code):
        for const in code.co_consts:
            if isinstance(const, CodeType):
                found |= _codes(const)
    return found


def _is_function(code: CodeType) -> bool:
    return bool(code.co_flags & 0x02)  # CO_NEWLOCALS: not the body of a module or class


def _fingerprint(code: CodeType) -> tuple[Any, ...]:
    """The code without its place in the file; classes and modules also without the functions in them."""
    nested = [const for const in code.co_consts if isinstance(const, CodeType)]
    inner = tuple(_fingerprint(each) for each in nested) if _is_function(code) else ()
    consts = tuple(repr(const) for const in code.co_consts if not isinstance(const, CodeType))
    return code.co_code, code.co_names, code.co_varnames, consts, inner


def _function(module: ModuleType, qualified_name: str) -> FunctionType:
    found: Any = module
    for name in qualified_name.split("."):
        found = vars(found).get(name)
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, cached_property):
        found = found.func
    elif isinstance(found, staticmethod | classmethod):
        found = found.__func__
    if not isinstance(found, FunctionType):
        raise CannotPatchError(f"{module.__name__}: {qualified_name} is not a function")
    return found
