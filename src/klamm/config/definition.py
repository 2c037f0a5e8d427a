"""One configuration key, declared once: type, default, validator, importance, documentation and how it can change.

A key is also the attribute of its configuration class: `KafkaConfig.num_io_threads` is the `Key`, and
`config.num_io_threads` the typed value. Values live in the instance, so reading one costs an attribute access.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from klamm.config.values import ConfigType, Validator, Value, expected, parse, to_text
from klamm.errors import ConfigError

T = TypeVar("T")


class Importance(StrEnum):
    HIGH = "HIGH"
    MEDIUM = "MEDIUM"
    LOW = "LOW"


class UpdateMode(StrEnum):
    """Whether a running broker accepts a new value, and for which brokers it may be set."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class Support(Enum):
    HONOURED = "honoured"
    NO_EFFECT = "no effect"
    """A key that klamm does not use, but that tools read and files contain: it is accepted with a warning."""
    ONLY_DEFAULT = "only its default"
    """A key of an unsupported feature: its validator accepts only the value that disables it."""


@dataclass(frozen=True, slots=True, eq=False)
class Key(Generic[T]):
    name: str
    kind: ConfigType
    default: T
    doc: str
    importance: Importance = Importance.MEDIUM
    validator: Validator | None = None
    update_mode: UpdateMode = UpdateMode.READ_ONLY
    support: Support = Support.HONOURED
    synonyms: tuple[str, ...] = ()
    """The broker keys that give a topic key its default, strongest first."""

    @property
    def attribute(self) -> str:
        return self.name.replace(".", "_")

    @property
    def is_sensitive(self) -> bool:
        return self.kind is ConfigType.PASSWORD

    @property
    def default_text(self) -> str | None:
        return None if self.default is None else to_text(self.default)

    @overload
    def __get__(self, instance: None, owner: type) -> Key[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Key[T] | T:
        return self if instance is None else self.default

    def parse(self, raw: object, source: str | None = None) -> Value:
        """Return the typed value. Raises ConfigError with the key, the origin of the value and the expected form."""
        try:
            value = parse(self.kind, raw)
            wanted = self.validator(value) if self.validator is not None and value is not None else None
        except ValueError as error:
            wanted = str(error) or expected(self.kind)
        if wanted is not None:
            shown = "[hidden]" if self.is_sensitive else repr(to_text(raw))
            where = f"{source}: " if source else ""
            raise ConfigError(f"{where}{self.name} cannot be {shown}: expected {wanted}.")
        return value


if TYPE_CHECKING:
    AnyKey = Key[Any]
else:
    AnyKey = Key


def collect_keys(*classes: type) -> dict[str, AnyKey]:
    """Return every key declared in `classes`, by name. The attribute must be the name with underscores."""
    keys: dict[str, AnyKey] = {}
    for cls in classes:
        for attribute, key in vars(cls).items():
            if isinstance(key, Key):
                assert attribute == key.attribute, f"{cls.__name__}.{attribute} declares {key.name}"
                assert key.name not in keys, f"{key.name} is declared twice"
                keys[key.name] = key
    return dict(sorted(keys.items()))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence with the nearest names, or an empty string."""
    import difflib  # imported only after a mistake, because a broker should start quickly

    near = difflib.get_close_matches(name, list(known), n=2, cutoff=0.75)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def parse_all(
    keys: Mapping[str, AnyKey], raw: Mapping[str, object], sources: Mapping[str, str] | None = None
) -> dict[str, Value]:
    """Return the typed values of `raw`; every name must be in `keys`."""
    where = sources or {}
    return {name: keys[name].parse(value, where.get(name)) for name, value in raw.items()}


def _declare(kind: ConfigType) -> Any:
    def declare(
        name: str,
        default: Any,
        doc: str,
        *,
        importance: Importance = Importance.MEDIUM,
        check: Validator | None = None,
        update: UpdateMode = UpdateMode.READ_ONLY,
        support: Support = Support.HONOURED,
        synonyms: tuple[str, ...] = (),
    ) -> AnyKey:
        return Key(
            name,
            kind,
            default,
            doc,
            importance=importance,
            validator=check,
            update_mode=update,
            support=support,
            synonyms=synonyms,
        )

    return declare


if TYPE_CHECKING:
    from typing import Protocol

    class _Declare(Protocol[T]):
        def __call__(
            self,
            name: str,
            default: T,
            doc: str,
            *,
            importance: Importance = ...,
            check: Validator | None = ...,
            update: UpdateMode = ...,
            support: Support = ...,
            synonyms: tuple[str, ...] = ...,
        ) -> Key[T]: ...


boolean: _Declare[bool] = _declare(ConfigType.BOOLEAN)
string: _Declare[str] = _declare(ConfigType.STRING)
optional_string: _Declare[str | None] = _declare(ConfigType.STRING)
optional_password: _Declare[str | None] = _declare(ConfigType.PASSWORD)
int32: _Declare[int] = _declare(ConfigType.INT)
optional_int32: _Declare[int | None] = _declare(ConfigType.INT)
int16: _Declare[int] = _declare(ConfigType.SHORT)
int64: _Declare[int] = _declare(ConfigType.LONG)
optional_int64: _Declare[int | None] = _declare(ConfigType.LONG)
double: _Declare[float] = _declare(ConfigType.DOUBLE)
strings: _Declare[tuple[str, ...]] = _declare(ConfigType.LIST)
