"""A controller remembers replicas that a reassignment took away until their brokers have deleted them."""

from __future__ import annotations

from klamm.controller.context.deletions import Deletions
from klamm.model import EPOCH_DURING_DELETE, TopicPartition

TP = TopicPartition("t", 0)


def forget(leader_epoch: int) -> dict[int, dict[TopicPartition, int]]:
    deletions = Deletions()
    deletions.add_stray(3, TP, 7)
    deletions.forget_strays(3, [(TP, leader_epoch)])
    return {broker: dict(strays) for broker, strays in deletions.strays.items()}


def test_the_answer_to_an_earlier_deletion_does_not_end_a_later_one() -> None:
    assert forget(6) == {3: {TP: 7}}


def test_the_answer_to_this_one_or_a_repeat_or_to_the_end_of_the_topic_does() -> None:
    assert forget(7) == forget(8) == forget(EPOCH_DURING_DELETE) == {}
