"""A mutant is patched into loaded functions and taken out again."""

from __future__ import annotations

import pytest

from klamm.coordinator.transaction import transaction_metadata
from klamm.coordinator.transaction.transaction_metadata import TransactionMetadata, TransactionState, TransactionValue
from klamm.sim.mutant import Mutant
from klamm.sim.patching import patched

MODULE = transaction_metadata.__name__


def test_a_method_is_changed_for_the_time_of_the_block() -> None:
    txn = TransactionMetadata("t", TransactionValue(1), max_epoch=5)
    with patched(Mutant(MODULE, "return producer_epoch >= self.max_epoch - 1", "return False")):
        assert not txn.is_exhausted(5)
    assert txn.is_exhausted(5)


def test_a_property_is_changed() -> None:
    with patched(Mutant(MODULE, "        return self in _IDLE\n", "        return True\n")):
        assert TransactionState.ONGOING.may_expire
    assert not TransactionState.ONGOING.may_expire


def test_a_constant_cannot_be_changed() -> None:
    mutant = Mutant(MODULE, "MAX_PRODUCER_EPOCH: Final = 32_767", "MAX_PRODUCER_EPOCH: Final = 7")
    with pytest.raises(ValueError, match="is not a function"), patched(mutant):
        pass


def test_a_missing_text_is_reported() -> None:
    with pytest.raises(ValueError, match="has no text"), patched(Mutant(MODULE, "no such text", "")):
        pass
