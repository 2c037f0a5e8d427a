"""`lazy_dataclass`: a frozen dataclass whose methods are compiled at their first call.

A frozen dataclass compiles its methods at its definition, which takes half a millisecond per class. A broker has more
than a hundred small value classes, and most starts use few of them. After the first call the class equals the result
of `dataclasses.dataclass(frozen=True, slots=True)`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dataclasses import dataclass as lazy_dataclass
else:

    def lazy_dataclass(*, frozen: bool, slots: bool) -> Callable[[type[Any]], type[Any]]:
        """For values whose base classes have no fields, and only as `@lazy_dataclass(frozen=True, slots=True)`."""
        assert frozen and slots, "use dataclasses.dataclass for a mutable class or one with a __dict__"
        return _define


__all__ = ["lazy_dataclass"]

_COMPARISONS: Final = ("__eq__", "__hash__", "__repr__")


def _define(cls: type[Any]) -> type[Any]:
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # else dataclasses derives one from the signature, which is the slowest part
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    made.__init__ = _later(made, "__init__", _make_init)
    for name in _COMPARISONS:
        setattr(made, name, _later(made, name, _make_comparisons))
    made.__setattr__, made.__delattr__ = _refuse_to_set, _refuse_to_delete
    made.__getstate__, made.__setstate__ = _get_state, _set_state
    return made  # type: ignore[no-any-return]


def _later(cls: type[Any], name: str, make: Callable[[type[Any]], None]) -> Callable[..., Any]:
    def make_and_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        make(cls)
        return getattr(cls, name)(self, *args, **kwargs)

    return make_and_call


def _make_init(cls: type[Any]) -> None:
    env: dict[str, Any] = {"MISSING": dataclasses.MISSING}
    parameters, body = ["self"], []
    for f in dataclasses.fields(cls):
        value = f.name
        if f.default_factory is not dataclasses.MISSING:
            env[f"default_{f.name}"], env[f"make_{f.name}"] = dataclasses.MISSING, f.default_factory
            value = f"make_{f.name}() if {f.name} is MISSING else {f.name}"
        elif f.default is not dataclasses.MISSING:
            env[f"default_{f.name}"] = f.default
        parameters.append(f"{f.name}=default_{f.name}" if f"default_{f.name}" in env else f.name)
        env[f"set_{f.name}"] = getattr(cls, f.name).__set__  # of the slot: a third faster than object.__setattr__
        body.append(f"set_{f.name}(self, {value})")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    exec(f"def __init__({', '.join(parameters)}):\n    {'; '.join(body) or 'pass'}\n", env)
    env["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
    cls.__init__ = env["__init__"]


def _make_comparisons(cls: type[Any]) -> None:
    """Copy the methods from a second class of the same fields, which the standard library makes."""
    parts = [(f.name, f.type, f) for f in dataclasses.fields(cls)]
    twin = dataclasses.make_dataclass(cls.__name__, parts, init=False, unsafe_hash=True)
    for name in _COMPARISONS:
        setattr(cls, name, getattr(twin, name))


def _refuse_to_set(self: Any, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _get_state(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for f, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, f.name, value)
