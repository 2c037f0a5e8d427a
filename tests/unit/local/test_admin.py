"""ClusterAdmin queries against scripted brokers: answers about ended brokers are ignored."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest

from klamm.errors import ErrorCode, KlammError
from klamm.local import admin
from klamm.local.admin import ClusterAdmin
from klamm.local.broker_names import brokers_are
from klamm.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from klamm.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from klamm.protocol.wire import Message
from klamm.security.client_security import PLAINTEXT, ClientSecurity

ADDRESSES = {1: ("a", 1), 2: ("b", 2)}


def view(leader: int, *, epoch: int = 1, isr: Collection[int] = (1, 2)) -> MetadataResponse:
    partition = MetadataResponsePartition(
        error_code=ErrorCode.NONE,
        partition_index=0,
        leader_id=leader,
        leader_epoch=epoch,
        replica_nodes=(1, 2, 3),
        isr_nodes=tuple(isr),
    )
    topic = MetadataResponseTopic(error_code=ErrorCode.NONE, name="t", is_internal=False, partitions=[partition])
    return MetadataResponse(brokers=(), cluster_id="c", controller_id=1, topics=[topic])


class Brokers:
    """Each question gets the next of the views, and the last one for ever."""

    def __init__(self, *views: MetadataResponse) -> None:
        self._views = list(views)

    def answer(self, address: object, request: MetadataRequest, *_: object, **__: object) -> MetadataResponse:
        return self._views.pop(0) if len(self._views) > 1 else self._views[0]


class Processes:
    """Brokers that answer, of which some have ended."""

    def __init__(self, ended: Collection[int]) -> None:
        self._ended = ended

    @property
    def client_security(self) -> ClientSecurity:
        return PLAINTEXT

    def answering(self) -> Mapping[int, tuple[str, int]]:
        return ADDRESSES

    def ended(self) -> Collection[int]:
        return self._ended

    def why_silent(self) -> str | None:
        return None

    def why_unknown(self, topic: str, partition: int) -> str | None:
        return None

    def check(self, problem: str, *, is_late: bool) -> None:
        if is_late:
            raise KlammError(f"{problem}.")


def asking(monkeypatch: pytest.MonkeyPatch, *views: MetadataResponse, ended: Collection[int] = ()) -> ClusterAdmin:
    monkeypatch.setattr(admin, "ask_once", Brokers(*views).answer)
    return ClusterAdmin(Processes(ended), timeout_s=60.0 if len(views) > 1 else 0.0)


def test_a_leader_that_has_ended_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    views = [view(3), view(3), view(-1, epoch=2), view(3), view(2, epoch=3)]
    assert asking(monkeypatch, *views, ended=[3]).leader("t", 0) == 2


@pytest.mark.parametrize(
    ("found", "reported"),
    [
        (view(3, isr=[3]), ": broker 3 is not running, and no other replica is in sync."),
        (view(-1, isr=[3, 4]), ": brokers 3 and 4 are not running, and no other replica is in sync."),
        (view(-1), ": in sync are 1, 2."),
        (view(-1, isr=[]), ": in sync are none of its replicas."),
    ],
)
def test_why_there_is_no_leader(monkeypatch: pytest.MonkeyPatch, found: MetadataResponse, reported: str) -> None:
    with pytest.raises(KlammError) as raised:
        asking(monkeypatch, found, ended=[3, 4]).leader("t", 0)
    assert str(raised.value) == f"t-0 has no leader in time{reported}"


class Controller:
    """May know the topic; the first attempt to create it is answered too late, the second one with: it is there."""

    def __init__(self, knows_topic: bool) -> None:
        self._knows_topic = knows_topic
        self.attempts = 0

    def answer(self, address: object, request: Message, *_: object, **__: object) -> Message:
        if isinstance(request, MetadataRequest):
            found = view(1)
            return found if self._knows_topic else replace(found, topics=())
        self.attempts += 1
        if self.attempts == 1:
            raise TimeoutError
        self._knows_topic = True
        return CreateTopicsResponse(topics=[CreatableTopicResult(name="t", error_code=ErrorCode.TOPIC_ALREADY_EXISTS)])


@pytest.mark.parametrize("was_there", [False, True])
def test_a_topic_that_was_created_too_late_to_be_reported(monkeypatch: pytest.MonkeyPatch, was_there: bool) -> None:
    asked = asking(monkeypatch, view(1), view(1))
    controller = Controller(was_there)
    monkeypatch.setattr(admin, "ask_once", controller.answer)
    if was_there:
        with pytest.raises(KlammError, match="Topic t was not created: TOPIC_ALREADY_EXISTS"):
            asked.create_topic("t", 1, 1, {})
    else:
        asked.create_topic("t", 1, 1, {})
    assert controller.attempts == 2


def test_brokers_are_named_as_people_do() -> None:
    assert [brokers_are(ids) for ids in ([1], [1, 2], [1, 2, 3])] == [
        "broker 1 is",
        "brokers 1 and 2 are",
        "brokers 1, 2 and 3 are",
    ]
