"""Options of a write to topics: those of Spark's Kafka sink, checked on the driver before a task starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from klamm.errors import KlammError
from klamm.security.client_security import PROPERTIES
from klamm.security.redaction import HiddenSecrets, is_secret

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

PREFIX: Final = "kafka."
BATCH_OPTION: Final = "klamm.batch"
"""Set by klamm itself, if it writes a batch of a stream with `df.write`: the number of the batch."""

DEFAULTS: Final[Mapping[str, str]] = {
    "client.id": "klamm-spark",
    "enable.idempotence": "true",
    "acks": "all",
    "partitioner": "murmur2_random",
    "delivery.timeout.ms": "120000",
}
"""Kafka's defaults where librdkafka's differ; `murmur2_random` partitions keys like Kafka's Java producer."""

_RENAMED: Final[Mapping[str, str]] = {
    "max.request.size": "message.max.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
}
_WITHOUT_EFFECT: Final = frozenset(
    {
        "auto.include.jmx.reporter",
        "max.block.ms",
        "metadata.max.idle.ms",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
    }
)
"""Settings of Kafka's producer that have no effect here. Only the task itself blocks, up to `delivery.timeout.ms`, so
`max.block.ms` is one of them."""
_REFUSED: Final[Mapping[str, str]] = {
    "key.serializer": "keys are written as the bytes they are",
    "value.serializer": "values are written as the bytes they are",
    "interceptor.classes": "Python clients have no interceptors",
    "security.providers": "Python clients have no Java security providers",
    "transactional.id": "guarantee=exactly_once makes an id per task; 'transactionalIdPrefix' is what they begin with",
}
_DEFAULT_PARTITIONER: Final = "org.apache.kafka.clients.producer.internals.DefaultPartitioner"
_MOST_IN_FLIGHT: Final = 5
"""Idempotence preserves the order of at most this many requests in flight."""


AT_LEAST_ONCE: Final = "at_least_once"
EXACTLY_ONCE: Final = "exactly_once"
TIMEOUT_MS: Final = 900_000
"""Kafka's default of `transaction.max.timeout.ms`: the longest that brokers accept unless they are configured."""
_MIN_TIMEOUT_MS: Final = 1000
_CLIENT: Final = ("client.id", "request.timeout.ms", "retry.backoff.ms")
"""Settings that klamm's own client has too, under the same names."""


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """`topic` wins over the column of that name; `producer` are settings as librdkafka names them.

    `buffer_memory` bounds the bytes that a task has sent and the brokers have not acknowledged. The other fields are
    for exactly-once sinks; `batch` is the number of the batch if a batch of a stream is written by `df.write`.
    """

    topic: str | None
    producer: tuple[tuple[str, str], ...] = field(repr=False)
    buffer_memory: int | None = None
    is_exactly_once: bool = False
    sink_id: str | None = None
    checkpoint: str | None = None
    transaction_timeout_ms: int = TIMEOUT_MS
    batch: int | None = None
    security: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """The options of security, as Kafka names them, without their prefix."""

    @property
    def settings(self) -> dict[str, str]:
        return dict(self.producer)

    @property
    def all_settings(self) -> dict[str, Any]:
        """The settings with those of security, for librdkafka. Files are read here, so in each task."""
        from klamm.security.librdkafka import librdkafka_settings
        from klamm.spark.source.client_options import client_security

        return {**self.settings, **librdkafka_settings(client_security(dict(self.security)))}

    @property
    def servers(self) -> str:
        return self.settings["bootstrap.servers"]

    @property
    def client(self) -> dict[str, str]:
        """The settings of klamm's own client."""
        own = {name: value for name, value in self.producer if name in _CLIENT}
        return HiddenSecrets({**own, **dict(self.security)})


def parse(options: Mapping[str, str]) -> WriterOptions:
    """Parse the options. Raises KlammError and names the missing or wrong option. Names are case-insensitive."""
    given = {name.lower(): value for name, value in options.items()}
    wants_exactly_once = is_exactly_once(given)
    named = {name.removeprefix(PREFIX): value for name, value in given.items() if name.startswith(PREFIX)}
    memory = named.pop("buffer.memory", None)
    if wants_exactly_once:
        _refuse_weaker(named)
    timeout_ms = _timeout_ms(named.pop("transaction.timeout.ms", None))
    security = tuple(sorted((name, named.pop(name)) for name in PROPERTIES & named.keys()))
    producer = _producer(named)
    _try(producer)
    topic = given.get("topic")
    if topic is not None and not topic.strip():
        raise KlammError("Option 'topic' is empty.")
    batch = given.get(BATCH_OPTION)
    return WriterOptions(
        topic.strip() if topic is not None else None,
        producer,
        None if memory is None else _buffer_memory(memory),
        wants_exactly_once,
        sink_id=_sink_id(given.get("transactionalidprefix"), wants_exactly_once),
        checkpoint=given.get("checkpointlocation"),
        transaction_timeout_ms=timeout_ms,
        batch=None if batch is None else int(batch),
        security=security,
    )


def is_exactly_once(options: Mapping[str, str]) -> bool:
    """Return whether the option `guarantee` says so. Names and the value are case-insensitive."""
    given = next((value for name, value in options.items() if name.lower() == "guarantee"), AT_LEAST_ONCE)
    guarantee = given.strip().lower()
    if guarantee not in (AT_LEAST_ONCE, EXACTLY_ONCE):
        raise KlammError(f"Option 'guarantee' is at_least_once or exactly_once, not {given!r}.")
    return guarantee == EXACTLY_ONCE


def _refuse_weaker(named: Mapping[str, str]) -> None:
    """Transactions need idempotence and acks=all, and nothing else is sensible."""
    if named.get("acks", "all").strip().lower() not in ("all", "-1"):
        raise KlammError(f"Option '{PREFIX}acks' is {named['acks']}: exactly_once needs all.")
    if named.get("enable.idempotence", "true").strip().lower() != "true":
        raise KlammError(f"Option '{PREFIX}enable.idempotence' is false: exactly_once needs it.")


def _timeout_ms(text: str | None) -> int:
    if text is None:
        return TIMEOUT_MS
    if not text.strip().isdecimal() or not _MIN_TIMEOUT_MS <= int(text) <= 0x7FFFFFFF:
        raise KlammError(
            f"Option '{PREFIX}transaction.timeout.ms' is a number of at least {_MIN_TIMEOUT_MS}, not {text!r}."
        )
    return int(text)


def _sink_id(text: str | None, is_exactly_once: bool) -> str | None:
    if text is None:
        return None
    if not text.strip():
        raise KlammError("Option 'transactionalIdPrefix' is empty.")
    if not is_exactly_once:
        raise KlammError("Option 'transactionalIdPrefix' has no effect without guarantee=exactly_once.")
    return text.strip()


def _buffer_memory(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise KlammError(f"Option '{PREFIX}buffer.memory' is a number of bytes, not {text!r}.")
    return int(text)


def _producer(named: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Translate the settings of Kafka's producer in `named` (without prefix) to librdkafka's."""
    for name, why in _REFUSED.items():
        if name in named:
            raise KlammError(f"Option '{PREFIX}{name}' is not supported: {why}.")
    if not named.get("bootstrap.servers", "").strip():
        raise KlammError("Option 'kafka.bootstrap.servers' must be specified: the brokers to ask first.")
    kept = {name: value for name, value in named.items() if name not in _WITHOUT_EFFECT}
    settings = {**DEFAULTS, **_partitioner(kept), **_compression_level(kept)}
    settings |= {_RENAMED.get(name, name): value for name, value in kept.items()}
    settings["acks"] = _acks(settings["acks"])
    if "enable.idempotence" not in named and not _may_be_idempotent(settings):
        settings["enable.idempotence"] = "false"
    return tuple(sorted(settings.items()))


def _acks(text: str) -> str:
    if (acks := text.strip().lower()) not in ("all", "-1", "0", "1"):
        raise KlammError(f"Option '{PREFIX}acks' is all, -1, 0 or 1, not {text!r}.")
    return acks


def _may_be_idempotent(settings: Mapping[str, str]) -> bool:
    """As in Kafka's producer: incompatible settings disable idempotence, unless it was requested explicitly."""
    in_flight = settings.get("max.in.flight.requests.per.connection", "1").strip()
    return (
        settings["acks"] in ("all", "-1")
        and settings.get("retries", "1").strip() != "0"
        and not (in_flight.isdecimal() and int(in_flight) > _MOST_IN_FLIGHT)
    )


def _partitioner(named: dict[str, str]) -> dict[str, str]:
    """Remove the settings it handles from `named`."""
    given = named.pop("partitioner.class", "").strip()
    if given not in ("", "null", _DEFAULT_PARTITIONER):
        raise KlammError(
            f"Option '{PREFIX}partitioner.class': {given} is a Java class and cannot run here. Keys choose "
            "partitions as with Kafka's default; a column 'partition' chooses them in any other way."
        )
    ignore_keys = named.pop("partitioner.ignore.keys", "false").strip().lower()
    if ignore_keys not in ("true", "false"):
        raise KlammError(f"Option '{PREFIX}partitioner.ignore.keys' is true or false, not {ignore_keys!r}.")
    return {"partitioner": "random"} if ignore_keys == "true" else {}


def _compression_level(named: dict[str, str]) -> dict[str, str]:
    """Kafka has one level per codec, librdkafka one for the codec in use. Removes the levels from `named`."""
    levels = {codec: named.pop(f"compression.{codec}.level", None) for codec in ("gzip", "lz4", "zstd")}
    level = levels.get(named.get("compression.type", "none").strip().lower())
    return {} if level is None else {"compression.level": level}


@cache
def _try(producer: tuple[tuple[str, str], ...]) -> None:
    """Let librdkafka check the settings. Raises KlammError and names the refused one."""
    if (reason := _refusal(dict(producer))) is None:
        return
    kafka_names = {name: kafka_name for kafka_name, name in _RENAMED.items()}
    for name, value in producer:
        if (own := _refusal({name: value})) is not None:
            own = "its value is invalid" if is_secret(name) else own
            raise KlammError(f"Option '{PREFIX}{kafka_names.get(name, name)}' is refused by the producer: {own}.")
    raise KlammError(f"The {PREFIX}* options are refused by the producer: {reason}.")


def _refusal(settings: Mapping[str, str]) -> str | None:
    from confluent_kafka import KafkaException, Producer

    try:
        Producer({**settings, "log_level": 0})
    except KafkaException as error:
        return str(error.args[0].str())
    except (ValueError, TypeError) as error:
        return str(error)
    return None


def check_schema(schema: StructType, options: WriterOptions) -> None:
    """Raise KlammError unless the columns are those of Spark's Kafka sink; other columns are ignored."""
    from pyspark.sql.types import BinaryType, IntegerType, StringType

    types = {field.name: field.dataType for field in schema.fields}
    if "value" not in types:
        raise KlammError(f"Required attribute 'value' not found: the columns are {', '.join(types) or 'none'}.")
    if options.topic is None and "topic" not in types:
        raise KlammError("Option 'topic' is required when the rows have no 'topic' column.")
    allowed: dict[str, tuple[type[DataType], ...]] = {
        "key": (StringType, BinaryType),
        "value": (StringType, BinaryType),
        "topic": (StringType,),
        "partition": (IntegerType,),
    }
    for name, kinds in allowed.items():
        if name in types and not isinstance(types[name], kinds):
            wanted = " or ".join(kind.typeName() for kind in kinds)
            raise KlammError(f"Attribute '{name}' must be {wanted}, not {types[name].simpleString()}.")
    if "headers" in types and not _is_headers(types["headers"]):
        found = types["headers"].simpleString()
        raise KlammError(f"Attribute 'headers' must be array<struct<key:string,value:binary>>, not {found}.")


def _is_headers(kind: Any) -> bool:
    from pyspark.sql.types import ArrayType, BinaryType, StringType, StructType

    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    return [(field.name, type(field.dataType)) for field in kind.elementType.fields] == [
        ("key", StringType),
        ("value", BinaryType),
    ]
