"""Creation of topics that clients ask for and that do not exist. The controller creates them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from klamm.apis.api_declaration import Broker
from klamm.config import KafkaConfig
from klamm.controller.events import CreatableTopic
from klamm.controller.replies import TopicResults
from klamm.errors import ErrorCode
from klamm.model import CONTROL_LOG_TOPIC, GROUP_METADATA_TOPIC
from klamm.waiting import after

WAIT_MS: Final = 1_000
"""A client that names a topic does not wait for its creation: it retries."""
MAX_MISSING: Final = 100
"""Topics that one request may create by asking about them. The client asks again, and then the next ones follow."""

log = logging.getLogger(__name__)


def create_missing(
    broker: Broker, names: Iterable[str], make: Callable[[str], CreatableTopic] | None = None
) -> asyncio.Future[dict[str, ErrorCode]]:
    """Ask the controller to create `names`; return the error for the client that asked for them, by name.

    LEADER_NOT_AVAILABLE when the topic is on its way or the controller takes long, so that the client asks again; the
    controller's error when it cannot be; UNKNOWN_TOPIC_OR_PARTITION when the controller could not be asked. A topic
    that the controller was asked for and has not answered is not asked for again. `make` says what a topic is to be
    like where that is not the default.
    """
    told = dict.fromkeys(names, ErrorCode.LEADER_NOT_AVAILABLE)
    asked = [name for name in told if not broker.topic_creation.is_under_way(name)][:MAX_MISSING]

    def errors(results: TopicResults) -> dict[str, ErrorCode]:
        _warn_of_refused_offsets_topic(broker, results)
        each = {result.name: _told(result.error) for result in results.topics}
        return told | dict.fromkeys(asked, _told(results.error)) | each

    if not asked:
        nothing: asyncio.Future[dict[str, ErrorCode]] = broker.loop.create_future()
        nothing.set_result(told)
        return nothing
    topics = tuple(make(name) if make is not None else _creatable(broker, name) for name in asked)
    # In two steps: a refusal that arrives after the timeout must still be logged.
    answer: asyncio.Future[dict[str, ErrorCode]] = after(broker.topic_creation.create(topics), errors)
    return after(answer, dict, timeout_ms=WAIT_MS, on_timeout=lambda: told)


def _creatable(broker: Broker, name: str) -> CreatableTopic:
    config = broker.config
    if name == GROUP_METADATA_TOPIC:
        return CreatableTopic(
            name,
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            configs=(
                ("cleanup.policy", "compact"),
                ("compression.type", "producer"),
                ("segment.bytes", str(config.offsets_topic_segment_bytes)),
            ),
        )
    if name == CONTROL_LOG_TOPIC:
        return control_log_topic(config, config.klamm_control_log_replication_factor)
    return CreatableTopic(name)


def why_no_offsets_topic(broker: Broker) -> str | None:
    """Return why `__consumer_offsets` cannot be created with the live brokers; None if it can."""
    factor, alive = broker.config.offsets_topic_replication_factor, len(broker.metadata.snapshot.brokers)
    if factor <= alive:
        return None
    return (
        f"The topic {GROUP_METADATA_TOPIC} cannot be created, so there are no consumer groups: "
        f"offsets.topic.replication.factor is {factor}, live brokers: {alive}. "
        "Start more brokers, or set a smaller factor."
    )


def _warn_of_refused_offsets_topic(broker: Broker, results: TopicResults) -> None:
    refused = any(
        result.name == GROUP_METADATA_TOPIC and result.error == ErrorCode.INVALID_REPLICATION_FACTOR
        for result in results.topics
    )
    why = why_no_offsets_topic(broker) if refused else None
    if why is not None and broker.topic_creation.may_warn(broker.clock.monotonic()):
        log.warning("%s", why)


def control_log_topic(config: KafkaConfig, replication_factor: int) -> CreatableTopic:
    """One partition, so that there is one order; segments end early enough for its records to go in time."""
    retention_ms = config.klamm_control_log_retention_ms
    return CreatableTopic(
        CONTROL_LOG_TOPIC,
        1,
        replication_factor,
        configs=(
            ("cleanup.policy", "delete"),
            ("retention.ms", str(retention_ms)),
            ("segment.ms", str(max(retention_ms // 4, 1_000))),
        ),
    )


def _told(error: ErrorCode) -> ErrorCode:
    if error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT):
        return ErrorCode.LEADER_NOT_AVAILABLE
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if error == ErrorCode.NOT_CONTROLLER else error
