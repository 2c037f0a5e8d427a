"""`transaction.version`: finalised while every live broker speaks the repaired protocol."""

from __future__ import annotations

from klamm.coordinator.transaction.transaction_feature import TransactionFeature
from klamm.model import TransactionVersion

TV_0, _, TV_2 = TransactionVersion


def test_the_level_is_finalised_once_every_live_broker_is_capable() -> None:
    feature = TransactionFeature(TV_2)
    feature.set_capable(1, is_capable=True)
    feature.decide([1, 2], 1_000)
    assert feature.version is TV_0 and feature.unknown([1, 2]) == [2]
    feature.set_capable(2, is_capable=True)
    feature.decide([1, 2], 2_000)
    assert (feature.finalized.version, feature.finalized.epoch) == (TV_2, 2_000)


def test_a_broker_that_joins_turns_it_off_before_it_is_asked() -> None:
    feature = TransactionFeature(TV_2)
    feature.set_capable(1, is_capable=True)
    feature.decide([1], 1_000)
    feature.decide([1, 2], 1_500)
    assert (feature.finalized.version, feature.finalized.epoch) == (TV_0, 1_500)


def test_a_broker_that_left_must_prove_its_protocol_again() -> None:
    feature = TransactionFeature(TV_2)
    for broker_id in (1, 2):
        feature.set_capable(broker_id, is_capable=True)
    feature.decide([1], 1_000)
    assert feature.version is TV_2
    feature.decide([1, 2], 1_000)
    assert (feature.finalized.version, feature.finalized.epoch) == (TV_0, 1_001)


def test_the_epoch_grows_although_the_clock_goes_back() -> None:
    feature = TransactionFeature(TV_2)
    feature.set_capable(1, is_capable=True)
    feature.decide([1], 5_000)
    feature.set_capable(1, is_capable=False)
    feature.decide([1], 4_000)
    assert feature.finalized.epoch == 5_001


def test_the_configuration_and_an_empty_cluster_keep_it_off() -> None:
    feature = TransactionFeature(TV_0)
    feature.set_capable(1, is_capable=True)
    feature.decide([1], 1_000)
    assert feature.version is TV_0
    feature = TransactionFeature(TV_2)
    feature.decide([], 1_000)
    assert feature.version is TV_0
