"""Options of a write to topics: those of Spark's Kafka sink, checked on the driver before a task starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from klamm.errors import KlammError
from klamm.spark.source.read_options import refuse_security

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

PREFIX: Final = "kafka."

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
    "transactional.id": "transactions come with a later version",
}
_DEFAULT_PARTITIONER: Final = "org.apache.kafka.clients.producer.internals.DefaultPartitioner"
_MOST_IN_FLIGHT: Final = 5
"""Idempotence preserves the order of at most this many requests in flight."""


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """`topic` wins over the column of that name; `producer` are settings as librdkafka names them.

    `buffer_memory` bounds the bytes that a task has sent and the brokers have not acknowledged.
    """

    topic: str | None
    producer: tuple[tuple[str, str], ...]
    buffer_memory: int | None = None


def parse(options: Mapping[str, str]) -> WriterOptions:
    """Parse the options. Raises KlammError and names the missing or wrong option. Names are case-insensitive."""
    given = {name.lower(): value for name, value in options.items()}
    _check_guarantee(given.get("guarantee", "at_least_once"))
    refuse_security(given)
    named = {name.removeprefix(PREFIX): value for name, value in given.items() if name.startswith(PREFIX)}
    memory = named.pop("buffer.memory", None)
    producer = _producer(named)
    _try(producer)
    topic = given.get("topic")
    if topic is not None and not topic.strip():
        raise KlammError("Option 'topic' is empty.")
    return WriterOptions(
        topic.strip() if topic is not None else None, producer, None if memory is None else _buffer_memory(memory)
    )


def _buffer_memory(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise KlammError(f"Option '{PREFIX}buffer.memory' is a number of bytes, not {text!r}.")
    return int(text)


def _check_guarantee(guarantee: str) -> None:
    if guarantee == "exactly_once":
        raise KlammError(
            "Option 'guarantee': exactly_once into a topic needs transactions, which come with a later version; "
            "at_least_once is what there is. Exactly once into a table works now."
        )
    if guarantee != "at_least_once":
        raise KlammError(f"Option 'guarantee' is at_least_once or exactly_once, not {guarantee!r}.")


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
