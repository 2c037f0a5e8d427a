"""What a controller remembers of replicas that a reassignment took away, until their brokers have deleted them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from klamm.controller.context import ControllerContext
from klamm.model import EPOCH_DURING_DELETE, TopicPartition

TP = TopicPartition("t", 0)


def forget(leader_epoch: int) -> dict[int, dict[TopicPartition, int]]:
    context: Any = SimpleNamespace(pending_stray_deletes={3: {TP: 7}})
    ControllerContext.forget_stray_deletes(context, 3, [(TP, leader_epoch)])
    found: dict[int, dict[TopicPartition, int]] = context.pending_stray_deletes
    return found


def test_the_answer_to_an_earlier_deletion_does_not_end_a_later_one() -> None:
    assert forget(6) == {3: {TP: 7}}


def test_the_answer_to_this_one_or_a_repeat_or_to_the_end_of_the_topic_does() -> None:
    assert forget(7) == forget(8) == forget(EPOCH_DURING_DELETE) == {}
