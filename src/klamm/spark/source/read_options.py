"""The options of `format("klamm")` for reading: names, defaults, precedence and refusals of Spark's Kafka connector.

Pure: options in, a frozen `ReadOptions` out, or an `OptionError` that names the option. The case of keys is ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from klamm.client.patience import RANGE_FETCH
from klamm.errors import KlammError
from klamm.lazy_dataclass import lazy_dataclass
from klamm.model import TopicPartition
from klamm.protocol.compression import DEFAULT_MAX_DECOMPRESSED_BYTES
from klamm.security.redaction import HiddenSecrets

T = TypeVar("T")

EARLIEST: Final = -2
"""In offsets JSON and in ListOffsets: the first available offset."""
LATEST: Final = -1
"""In offsets JSON and in ListOffsets: the end."""

RAW: Final = "raw"
VALUE_FORMATS: Final = (RAW, "string", "json", "avro", "protobuf")
READ_MODES: Final = ("auto", "fetch", "direct")
SUBSCRIPTIONS: Final = ("subscribe", "subscribePattern", "assign")

DEFAULT_BATCH_BYTES: Final = 8 * 1024 * 1024
DEFAULT_POLL_MS: Final = 500
_POLL_TIMEOUT_MS: Final = int(RANGE_FETCH.deadline_s * 1000)
DEFAULT_MAX_TRIGGER_DELAY_MS: Final = 15 * 60 * 1000
DEFAULT_GROUP_ID_PREFIX: Final = "spark-kafka-source"

_REFUSED: Final = {
    "kafka.auto.offset.reset": "say where to begin with 'startingOffsets'",
    "kafka.key.deserializer": "keys are always binary; decode them with DataFrame operations",
    "kafka.value.deserializer": "values are always binary; decode them with DataFrame operations or 'valueFormat'",
    "kafka.enable.auto.commit": "offsets are kept in the checkpoint; 'commitGroup' shows them to Kafka's tools",
    "kafka.interceptor.classes": "there are no Java interceptors in a Python client",
    "kafka.security.providers": "there are no Java security providers in a Python client",
}
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?", re.I)
_DURATION_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class OptionError(KlammError, ValueError):
    """An option is missing, contradicts another, or has an invalid value."""


@lazy_dataclass(frozen=True, slots=True)
class Subscription:
    """The partitions to read: exactly one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()


@lazy_dataclass(frozen=True, slots=True)
class OffsetSpec:
    """Where to begin or end, for all partitions or for named ones.

    `offset` is EARLIEST or LATEST; `offsets` names offsets by partition (-2 and -1 as in the connector's JSON);
    `timestamp` and `timestamps` are epoch milliseconds. The last one that is set wins.
    """

    offset: int = LATEST
    offsets: Mapping[TopicPartition, int] | None = None
    timestamps: Mapping[TopicPartition, int] | None = None
    timestamp: int | None = None


@lazy_dataclass(frozen=True, slots=True)
class ReadOptions:
    bootstrap_servers: str
    subscription: Subscription
    starting: OffsetSpec
    ending: OffsetSpec
    client: Mapping[str, str]
    """Every `kafka.*` option, without the prefix."""
    starting_strategy: str = "error"
    fail_on_data_loss: bool = True
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = DEFAULT_MAX_TRIGGER_DELAY_MS
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    include_headers: bool = False
    poll_timeout_ms: int = _POLL_TIMEOUT_MS
    offset_retries: int = 3
    offset_retry_interval_ms: int = 10
    metadata_cache_ttl_ms: int = -1
    read_committed: bool = False
    columns: tuple[str, ...] = ()
    pushdown: bool = False
    read_mode: str = "fetch"
    log_dirs: tuple[str, ...] = ()
    batch_bytes: int = DEFAULT_BATCH_BYTES
    max_unpacked_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
    poll_ms: int = DEFAULT_POLL_MS
    commit_group: str | None = None
    value_format: str = RAW
    value_schema: str | None = None
    value_schema_file: str | None = None
    value_message: str | None = None

    @property
    def group_id(self) -> str:
        """Label of our clients; no group is joined."""
        return self.client["group.id"]


def parse_read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Raise OptionError for the first invalid option."""
    given = _Options(options)
    given.check_refused()
    if streaming:
        for name in ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets"):
            if given.has(name):
                raise OptionError(f"Option '{name}' is for batch queries: a streaming query has no end.")
    subscription = _subscription(given)
    starting = _offset_spec(given, "starting", LATEST if streaming else EARLIEST)
    ending = _offset_spec(given, "ending", LATEST)
    if not streaming:
        _check_batch_limits(starting, ending)
    if subscription.partitions:
        _check_names_assigned(subscription, starting, ending)
    return ReadOptions(
        bootstrap_servers=given.bootstrap_servers(),
        subscription=subscription,
        starting=starting,
        ending=ending,
        client=_client_options(given),
        starting_strategy=given.one_of("startingOffsetsByTimestampStrategy", ("error", "latest"), "error"),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        **_admission(given),
        min_partitions=given.maybe(given.positive, "minPartitions"),
        max_records_per_partition=given.maybe(given.positive, "maxRecordsPerPartition"),
        include_headers=given.flag("includeHeaders", False),
        poll_timeout_ms=given.number("kafkaConsumer.pollTimeoutMs", _POLL_TIMEOUT_MS, least=1),
        offset_retries=given.number("fetchOffset.numRetries", 3, least=0),
        offset_retry_interval_ms=given.number("fetchOffset.retryIntervalMs", 10, least=0),
        metadata_cache_ttl_ms=given.number("partition.metadata.cache.ttl.ms", -1, least=-1),
        read_committed=given.one_of("kafka.isolation.level", ("read_uncommitted", "read_committed"), "read_uncommitted")
        == "read_committed",
        **_own_options(given),
    )


def _admission(given: _Options) -> dict[str, Any]:
    least, most = (
        given.maybe(given.positive, "minOffsetsPerTrigger"),
        given.maybe(given.positive, "maxOffsetsPerTrigger"),
    )
    if least is not None and most is not None and least > most:
        raise OptionError(f"Option 'minOffsetsPerTrigger' ({least}) is above 'maxOffsetsPerTrigger' ({most}).")
    return {
        "min_offsets_per_trigger": least,
        "max_offsets_per_trigger": most,
        "max_trigger_delay_ms": given.duration("maxTriggerDelay", DEFAULT_MAX_TRIGGER_DELAY_MS),
    }


def _own_options(given: _Options) -> dict[str, Any]:
    """klamm's own options, in addition to the connector's."""
    value_format = given.one_of("valueFormat", VALUE_FORMATS, RAW)
    for name in ("valueSchema", "valueSchemaFile", "valueMessage"):
        if value_format in (RAW, "string") and given.has(name):
            raise OptionError(f"Option '{name}' cannot be used with valueFormat={value_format}.")
    if given.has("valueSchema") and given.has("valueSchemaFile"):
        raise OptionError("Give one of the options 'valueSchema' and 'valueSchemaFile', not both.")
    if value_format in ("json", "avro", "protobuf") and not (given.has("valueSchema") or given.has("valueSchemaFile")):
        raise OptionError(f"valueFormat={value_format} needs option 'valueSchema' or 'valueSchemaFile'.")
    log_dirs = given.names("logDirs")
    read_mode = given.one_of("readMode", READ_MODES, "fetch")
    if log_dirs and read_mode == "fetch":
        raise OptionError("Option 'logDirs' requires readMode=direct or auto: Fetch reads no files.")
    return {
        "columns": given.names("columns"),
        "pushdown": given.flag("pushdown", False),
        "read_mode": read_mode,
        "log_dirs": log_dirs,
        "batch_bytes": given.number("batchBytes", DEFAULT_BATCH_BYTES, least=1024, most=1 << 30),
        "max_unpacked_bytes": given.number(
            "maxUnpackedBytes", DEFAULT_MAX_DECOMPRESSED_BYTES, least=1024, most=1 << 30
        ),
        "poll_ms": given.number("pollMs", DEFAULT_POLL_MS, least=0),
        "commit_group": given.maybe(given.text, "commitGroup"),
        "value_format": value_format,
        "value_schema": given.maybe(given.text, "valueSchema"),
        "value_schema_file": given.maybe(given.text, "valueSchemaFile"),
        "value_message": given.maybe(given.text, "valueMessage"),
    }


class _Options:
    """The raw options by lower-case name, with one parser per kind of value."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {str(key).lower(): str(value) for key, value in options.items()}

    def has(self, name: str) -> bool:
        return name.lower() in self._values

    def text(self, name: str) -> str:
        value = self._values[name.lower()].strip()
        if not value:
            raise OptionError(f"Option '{name}' is empty.")
        return value

    def maybe(self, read: Callable[[str], T], name: str) -> T | None:
        return read(name) if self.has(name) else None

    def flag(self, name: str, default: bool) -> bool:
        value = self._values.get(name.lower(), str(default)).strip().lower()
        if value not in ("true", "false"):
            raise OptionError(f"Option '{name}' must be true or false, not {value!r}.")
        return value == "true"

    def positive(self, name: str) -> int:
        return self.number(name, 1, least=1)

    def number(self, name: str, default: int, *, least: int, most: int = (1 << 63) - 1) -> int:
        value = self._values.get(name.lower(), str(default)).strip()
        try:
            number = int(value)
        except ValueError:
            raise OptionError(f"Option '{name}' must be a whole number, not {value!r}.") from None
        if not least <= number <= most:
            bound = "positive" if least == 1 and number < 1 else f"at least {least}"
            bound = bound if number < least else f"at most {most}"
            raise OptionError(f"Option '{name}' must be {bound}, not {number}.")
        return number

    def one_of(self, name: str, choices: tuple[str, ...], default: str) -> str:
        value = self._values.get(name.lower(), default).strip().lower()
        if value not in choices:
            raise OptionError(f"Option '{name}' is one of {', '.join(choices)}, not {value!r}.")
        return value

    def duration(self, name: str, default_ms: int) -> int:
        """Parse a time as Spark does: 500ms, 30s, 15m, 2h; a plain number is milliseconds."""
        value = self._values.get(name.lower())
        if value is None:
            return default_ms
        match = _DURATION.fullmatch(value.strip())
        if match is None:
            raise OptionError(f"Option '{name}' must be a time such as 30s or 15m, not {value!r}.")
        return int(match[1]) * _DURATION_MS[(match[2] or "ms").lower()]

    def names(self, name: str) -> tuple[str, ...]:
        if not self.has(name):
            return ()
        found = tuple(dict.fromkeys(part.strip() for part in self._values[name.lower()].split(",") if part.strip()))
        if not found:
            raise OptionError(f"Option '{name}' names nothing.")
        return found

    def bootstrap_servers(self) -> str:
        if not self.has("kafka.bootstrap.servers"):
            raise OptionError("Option 'kafka.bootstrap.servers' is missing: name at least one broker as host:port.")
        return self.text("kafka.bootstrap.servers")

    def check_refused(self) -> None:
        for name, why in _REFUSED.items():
            if self.has(name):
                raise OptionError(f"Option '{name}' is not supported: {why}.")

    def client(self) -> HiddenSecrets:
        return HiddenSecrets(
            {name[len("kafka.") :]: value for name, value in self._values.items() if name.startswith("kafka.")}
        )


def _subscription(given: _Options) -> Subscription:
    chosen = [name for name in SUBSCRIPTIONS if given.has(name)]
    if not chosen:
        raise OptionError(f"Nothing to read: one of the options {', '.join(SUBSCRIPTIONS)} is required.")
    if len(chosen) > 1:
        raise OptionError(f"Options {' and '.join(chosen)} exclude each other: give one of them.")
    match chosen[0]:
        case "subscribe":
            return Subscription(topics=given.names("subscribe"))
        case "subscribePattern":
            pattern = given.text("subscribePattern")
            try:
                re.compile(pattern)
            except re.error as e:
                raise OptionError(f"Option 'subscribePattern' is not a regular expression: {e}.") from None
            return Subscription(pattern=pattern)
        case _:
            return Subscription(partitions=_assignment(given.text("assign")))


def _assignment(text: str) -> tuple[TopicPartition, ...]:
    wanted = 'JSON such as {"topic": [0, 1]}'
    value = _json_object("assign", text, wanted)
    found: list[TopicPartition] = []
    for topic, partitions in value.items():
        if not isinstance(partitions, list) or not all(_is_index(index) for index in partitions):
            raise OptionError(f"Option 'assign' is {wanted}: the partitions of {topic!r} are {partitions!r}.")
        found += [TopicPartition(topic, index) for index in partitions]
    if not found:
        raise OptionError("Option 'assign' names no partitions.")
    return tuple(sorted(set(found)))


def _offset_spec(given: _Options, side: str, default: int) -> OffsetSpec:
    """`<side>Timestamp` before `<side>OffsetsByTimestamp` before `<side>Offsets`."""
    if given.has(f"{side}Timestamp"):
        return OffsetSpec(timestamp=given.number(f"{side}Timestamp", 0, least=0))
    name = f"{side}OffsetsByTimestamp"
    if given.has(name):
        return OffsetSpec(timestamps=parse_partition_numbers(name, given.text(name), least=0))
    name = f"{side}Offsets"
    if not given.has(name):
        return OffsetSpec(offset=default)
    text = given.text(name)
    if text.lower() in ("earliest", "latest"):
        return OffsetSpec(offset=EARLIEST if text.lower() == "earliest" else LATEST)
    if not text.startswith("{"):
        raise OptionError(f"Option '{name}' must be earliest, latest or JSON, not {text!r}.")
    return OffsetSpec(offsets=parse_partition_numbers(name, text, least=EARLIEST))


def parse_partition_numbers(name: str, text: str, *, least: int) -> dict[TopicPartition, int]:
    """`{"topic": {"0": 23, "1": -2}}` as a dictionary; OptionError names the option."""
    wanted = 'JSON such as {"topic": {"0": 23}}'
    found: dict[TopicPartition, int] = {}
    for topic, partitions in _json_object(name, text, wanted).items():
        if not isinstance(partitions, dict):
            raise OptionError(f"Option '{name}' is {wanted}: {topic!r} has {partitions!r}.")
        for index, number in partitions.items():
            if not index.isdecimal() or int(index) > 0x7FFFFFFF:
                raise OptionError(f"Option '{name}' is {wanted}: {index!r} of {topic!r} is not a partition.")
            if not isinstance(number, int) or isinstance(number, bool) or not least <= number < 1 << 63:
                meant = "an offset is 0 or more, -1 for latest, or -2 for earliest"
                meant = meant if least == EARLIEST else "a timestamp is 0 or more, in milliseconds since 1970"
                raise OptionError(f"Option '{name}' has {json.dumps(number)} for {topic}-{index}: {meant}.")
            found[TopicPartition(topic, int(index))] = number
    if not found:
        raise OptionError(f"Option '{name}' names no partitions.")
    return found


def _json_object(name: str, text: str, wanted: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise OptionError(
            f"Option '{name}' is not valid JSON: {error.msg} at position {error.pos} of {text!r}; expected {wanted}."
        ) from None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise OptionError(f"Option '{name}' is {wanted}, not {text!r}.")
    return value


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 0x7FFFFFFF


def _check_batch_limits(starting: OffsetSpec, ending: OffsetSpec) -> None:
    if starting.timestamp is None and starting.timestamps is None:
        late = [tp for tp, offset in (starting.offsets or {}).items() if offset == LATEST]
        if late or (starting.offsets is None and starting.offset == LATEST):
            where = f" for {late[0]}" if late else ""
            raise OptionError(f"Option 'startingOffsets' cannot be latest{where} in a batch query.")
    if ending.timestamp is None and ending.timestamps is None:
        early = [tp for tp, offset in (ending.offsets or {}).items() if offset == EARLIEST]
        if early or (ending.offsets is None and ending.offset == EARLIEST):
            where = f" for {early[0]}" if early else ""
            raise OptionError(f"Option 'endingOffsets' cannot be earliest{where}.")
    begin, end = _named(starting), _named(ending)
    if begin is not None and end is not None and begin.keys() != end.keys():
        odd = ", ".join(map(str, sorted(begin.keys() ^ end.keys())))
        raise OptionError(f"The starting and ending offsets must name the same partitions; they differ in {odd}.")
    if starting.timestamp is not None and ending.timestamp is not None and starting.timestamp > ending.timestamp:
        raise OptionError(
            f"Option 'startingTimestamp' ({starting.timestamp}) is after 'endingTimestamp' ({ending.timestamp})."
        )
    for tp, first in (starting.offsets or {}).items():
        last = (ending.offsets or {}).get(tp, LATEST)
        if first >= 0 and last >= 0 and first > last:
            raise OptionError(f"Option 'startingOffsets' ({first}) is after 'endingOffsets' ({last}) for {tp}.")


def _named(spec: OffsetSpec) -> Mapping[TopicPartition, int] | None:
    return spec.timestamps if spec.timestamps is not None else spec.offsets


def _check_names_assigned(subscription: Subscription, starting: OffsetSpec, ending: OffsetSpec) -> None:
    assigned = set(subscription.partitions)
    for side, spec in (("starting", starting), ("ending", ending)):
        named = _named(spec)
        if named is not None and named.keys() != assigned:
            odd = ", ".join(map(str, sorted(named.keys() ^ assigned)))
            raise OptionError(f"The {side} offsets must name exactly the partitions of 'assign'; they differ in {odd}.")


def _client_options(given: _Options) -> HiddenSecrets:
    client = given.client()
    if "group.id" not in client:
        prefix = given.text("groupIdPrefix") if given.has("groupIdPrefix") else DEFAULT_GROUP_ID_PREFIX
        client["group.id"] = prefix
    client.setdefault("client.id", client["group.id"])
    return client
