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
from klamm.model import CONTROL_LOG_TOPIC, GROUP_METADATA_TOPIC, REQUEST_LOG_TOPIC, TRANSACTION_STATE_TOPIC
from klamm.quota.controller_mutation_quota import NO_QUOTA, ControllerMutationQuota
from klamm.waiting import after

WAIT_MS: Final = 1_000
"""A client that names a topic does not wait for its creation: it retries."""
MAX_MISSING: Final = 100
"""Topics that one request may create by asking about them. The client asks again, and then the next ones follow."""
_REQUEST_LOG_LIMITS: Final = (("retention.bytes", str(1 << 30)), ("segment.bytes", str(1 << 26)))
"""Traces of every request of a busy broker must not fill its disk."""
_OFFSETS_FACTOR: Final = "offsets.topic.replication.factor"
_TRANSACTION_FACTOR: Final = "transaction.state.log.replication.factor"

log = logging.getLogger(__name__)


def create_missing(
    broker: Broker,
    names: Iterable[str],
    make: Callable[[str], CreatableTopic] | None = None,
    quota: ControllerMutationQuota = NO_QUOTA,
) -> asyncio.Future[dict[str, ErrorCode]]:
    """Ask the controller to create `names`; return the error for the client that asked for them, by name.

    The error is LEADER_NOT_AVAILABLE if the topic is being created, so that the client retries; the controller's error
    if it cannot be created; UNKNOWN_TOPIC_OR_PARTITION if the controller did not answer. A topic whose creation is
    pending is not requested again. `make` returns the specification of a topic, if it is not the default. The
    partitions of new topics are charged to `quota`, if this is the controller.
    """
    pending = dict.fromkeys(names, ErrorCode.LEADER_NOT_AVAILABLE)
    asked = [name for name in pending if not broker.topic_creation.is_under_way(name)][:MAX_MISSING]

    def errors(results: TopicResults) -> dict[str, ErrorCode]:
        _warn_of_refused_topics(broker, results)
        if quota.is_limited and broker.controller.is_active:
            quota.record(sum(result.num_partitions for result in results.topics if result.error == ErrorCode.NONE))
        each = {result.name: _error_for_client(result.error) for result in results.topics}
        return pending | dict.fromkeys(asked, _error_for_client(results.error)) | each

    if not asked:
        nothing: asyncio.Future[dict[str, ErrorCode]] = broker.loop.create_future()
        nothing.set_result(pending)
        return nothing
    topics = tuple(make(name) if make is not None else _creatable(broker, name) for name in asked)
    # In two steps: a refusal that arrives after the timeout must still be logged.
    answer: asyncio.Future[dict[str, ErrorCode]] = after(broker.topic_creation.create(topics), errors)
    return after(answer, dict, timeout_ms=WAIT_MS, on_timeout=lambda: pending)


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
    if name == TRANSACTION_STATE_TOPIC:
        return _transaction_state_topic(config, len(broker.metadata.snapshot.brokers))
    if name == CONTROL_LOG_TOPIC:
        return control_log_topic(config, config.klamm_control_log_replication_factor)
    if name == REQUEST_LOG_TOPIC:
        return request_log_topic(config, config.klamm_request_trace_topic_replication_factor)
    return CreatableTopic(name)


def _transaction_state_topic(config: KafkaConfig, live_brokers: int) -> CreatableTopic:
    """As in Kafka, except that a cluster that is too small for the defaults uses smaller ones (decision 0029)."""
    factor, min_isr = config.transaction_state_log_replication_factor, config.transaction_state_log_min_isr
    if not _is_set(config, _TRANSACTION_FACTOR):
        factor = max(1, min(factor, live_brokers))
    if not _is_set(config, "transaction.state.log.min.isr"):
        min_isr = min(min_isr, max(1, factor - 1))
    return CreatableTopic(
        TRANSACTION_STATE_TOPIC,
        config.transaction_state_log_num_partitions,
        factor,
        configs=(
            ("unclean.leader.election.enable", "false"),
            ("compression.type", "uncompressed"),
            ("cleanup.policy", "compact"),
            ("min.insync.replicas", str(min_isr)),
            ("segment.bytes", str(config.transaction_state_log_segment_bytes)),
        ),
    )


def _is_set(config: KafkaConfig, name: str) -> bool:
    return name in config.static or name in config.dynamic


def why_impossible(broker: Broker, topic: str) -> str | None:
    """Return why the topic of a coordinator cannot be created with the live brokers; None if it can."""
    config, alive = broker.config, len(broker.metadata.snapshot.brokers)
    if topic == GROUP_METADATA_TOPIC:
        key, factor, missing = _OFFSETS_FACTOR, config.offsets_topic_replication_factor, "consumer groups"
    elif _is_set(config, _TRANSACTION_FACTOR):
        key, factor, missing = _TRANSACTION_FACTOR, config.transaction_state_log_replication_factor, "transactions"
    else:
        return None
    if factor <= alive:
        return None
    return (
        f"The topic {topic} cannot be created, so there are no {missing}: "
        f"{key} is {factor}, live brokers: {alive}. Start more brokers, or set a smaller factor."
    )


def _warn_of_refused_topics(broker: Broker, results: TopicResults) -> None:
    for result in results.topics:
        is_internal = result.name in (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC)
        if is_internal and result.error == ErrorCode.INVALID_REPLICATION_FACTOR:
            why = why_impossible(broker, result.name)
            if why is not None and broker.topic_creation.may_warn(broker.clock.monotonic()):
                log.warning("%s", why)


def control_log_topic(config: KafkaConfig, replication_factor: int) -> CreatableTopic:
    return _log_topic(CONTROL_LOG_TOPIC, replication_factor, config.klamm_control_log_retention_ms)


def request_log_topic(config: KafkaConfig, replication_factor: int) -> CreatableTopic:
    retention_ms = config.klamm_request_trace_topic_retention_ms
    return _log_topic(REQUEST_LOG_TOPIC, replication_factor, retention_ms, _REQUEST_LOG_LIMITS)


def _log_topic(
    name: str, replication_factor: int, retention_ms: int, limits: tuple[tuple[str, str], ...] = ()
) -> CreatableTopic:
    """Return a topic with one partition, so that its records have one order, and with segments short enough for
    retention.
    """
    times = (("retention.ms", str(retention_ms)), ("segment.ms", str(max(retention_ms // 4, 1_000))))
    return CreatableTopic(name, 1, replication_factor, configs=(("cleanup.policy", "delete"), *times, *limits))


def _error_for_client(error: ErrorCode) -> ErrorCode:
    if error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT):
        return ErrorCode.LEADER_NOT_AVAILABLE
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if error == ErrorCode.NOT_CONTROLLER else error
