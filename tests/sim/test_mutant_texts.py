"""Every mutant's text is in the module that it changes. Their runs would show it as well, but take minutes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from klamm.sim.cluster_mutants import CLUSTER_MUTANTS
from klamm.sim.guarded.guard_mutants import GUARD_MUTANTS, PROOF_MUTANTS
from klamm.sim.mutant import Mutant
from klamm.sim.mutants import MUTANTS
from klamm.sim.transactions.txn_mutants import TRANSACTION_MUTANTS

BUGS_OF_KAFKA = (16352, 18401, 18660, 19367, 19446, 19999, 20090)
"""Bugs that Kafka had in the repaired protocol of transactions, and in the markers."""


@pytest.mark.parametrize("mutants", [MUTANTS, CLUSTER_MUTANTS, TRANSACTION_MUTANTS, GUARD_MUTANTS, PROOF_MUTANTS])
def test_every_mutant_finds_its_text(mutants: dict[str, Mutant]) -> None:
    missing = []
    for name, mutant in ((name, each) for name, it in mutants.items() for each in (it, *it.beside)):
        spec = find_spec(mutant.module)
        assert spec is not None and spec.origin is not None, mutant.module
        source = Path(spec.origin).read_text()
        missing += [name for old in (mutant.old, *(old for old, _ in mutant.also)) if old not in source]
    assert not missing


@pytest.mark.parametrize("number", BUGS_OF_KAFKA)
def test_a_bug_of_kafka_has_a_mutant_and_a_test_with_its_number(number: int) -> None:
    assert any(name.startswith(f"kafka_{number}_") for name in TRANSACTION_MUTANTS)
    unit_tests = (Path(__file__).parents[1] / "unit").rglob("test_*.py")
    assert any(f"def test_kafka_{number}_" in path.read_text() for path in unit_tests)
