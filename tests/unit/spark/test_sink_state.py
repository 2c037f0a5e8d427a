"""The rules of an exactly-once sink: what a restart does with any state that a crash can leave."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

import pytest

from klamm.client.transaction_client import Ended, Transaction, TransactionState
from klamm.errors import KlammError
from klamm.spark.sink.exactly_once import SinkDriver
from klamm.spark.sink.sink_state import (
    NO_BATCH,
    LateBatchError,
    PreparedBatch,
    SinkState,
    TakenOverError,
    TornBatchError,
    check_open,
    check_planned,
    claimed,
    decided,
    is_decision,
    may_abort,
    parse_state,
    rolled_forward,
    task_id,
    to_sweep,
)
from klamm.spark.sink.state_topic import Rule
from klamm.spark.source.batch_offsets import BatchOffsets
from klamm.spark.source.checkpoint_locations import CheckpointError

RUN = "1f0b2c3d-0000-4000-8000-000000000000"
ONE, TWO = (Transaction(task_id("sink", 3, RUN, number, 0), 10 + number, 5) for number in range(2))
OFFSETS = BatchOffsets(({"t": {"0": 0}},), ({"t": {"0": 9}},))
OTHER_OFFSETS = BatchOffsets(({"t": {"0": 0}},), ({"t": {"0": 7}},))
COMPLETE = SinkState("query", 3, batch=6, offsets=OFFSETS)
BATCH = PreparedBatch("sink", "query", 3, 7, (ONE, TWO), OFFSETS)


def test_ids_name_the_sink_the_generation_the_run_the_task_and_its_attempt() -> None:
    assert ONE.transactional_id == "sink.3.1f0b2c3d.0.0"
    assert task_id("sink", 3, "no uuid", 0, 2) == "sink.3.d.0.2"


def test_a_state_survives_its_record() -> None:
    decision = decided(COMPLETE, BATCH)
    assert decision is not None
    for state in (SinkState(), COMPLETE, decision, replace(decision, offsets=None)):
        assert parse_state(state.to_json()) == state
    with pytest.raises(KlammError, match="a newer klamm has written it"):
        parse_state('{"version": 2}')


def test_a_batch_is_decided_once_and_its_repetition_is_recognised() -> None:
    decision = decided(COMPLETE, BATCH)
    assert decision == SinkState("query", 3, 7, 6, (ONE, TWO), False, OFFSETS)
    assert is_decision(decision, BATCH) and decided(decision, BATCH) is decision
    done = rolled_forward("sink", decision, {ONE: Ended.DONE, TWO: Ended.DONE})
    assert done == SinkState("query", 3, 7, 6, offsets=OFFSETS)
    again = replace(BATCH, transactions=(Transaction("sink.3.1f0b2c3d.0.0", 10, 6),))
    assert decided(done, again) is None
    assert decided(replace(done, offsets=None), again) is None


def test_a_checkpoint_that_is_older_than_the_topic_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"has batch 6 of this query already.*continues with batch 5"):
        decided(COMPLETE, replace(BATCH, batch=5))
    with pytest.raises(CheckpointError, match=r"batch 6 of this query with other records: offsets .*t-0: 9"):
        decided(COMPLETE, replace(BATCH, batch=6, offsets=OTHER_OFFSETS))


def test_a_checkpoint_that_lacks_a_batch_of_the_topic_is_refused_before_the_start() -> None:
    with pytest.raises(CheckpointError, match="has batch 6 of this query, and the checkpoint ends with batch 5"):
        check_planned(replace(COMPLETE, offsets=None), "query", 5)
    with pytest.raises(CheckpointError, match="has batch 6 of this query, and the checkpoint has no batch"):
        check_planned(COMPLETE, "query", NO_BATCH)
    check_planned(COMPLETE, "query", 6)
    check_planned(COMPLETE, "another", 5)
    check_planned(None, "query", NO_BATCH)


@pytest.mark.parametrize(("ended", "batch"), [(Ended.DONE, 7), (Ended.FENCED, 6)])
def test_a_decided_batch_is_completed_or_cancelled_before_a_checkpoint_is_compared(
    monkeypatch: pytest.MonkeyPatch, ended: Ended, batch: int
) -> None:
    """A batch whose transactions have timed out is not in the topic: a checkpoint that lacks it is not too old."""
    states = {"sink": decided(COMPLETE, BATCH)}

    class States:
        def change(self, sink: str, rule: Rule) -> SinkState | None:
            if (new := rule(states.get(sink))) is not None:
                states[sink] = new
            return new

    class Transactions:
        def end_all(self, transactions: Sequence[Transaction], *, commit: bool) -> dict[Transaction, Ended]:
            assert commit
            return dict.fromkeys(transactions, ended)

    driver = SinkDriver("", 1)
    monkeypatch.setattr(driver, "_connected", lambda: contextlib.nullcontext((Transactions(), States())))
    found = driver.state("sink")
    assert found is not None and (found.batch, found.is_complete, found.generation) == (batch, True, 3)
    assert states == {"sink": found} and driver.state("another") is None
    check_planned(found, "query", batch)


def test_a_new_checkpoint_counts_its_batches_from_zero() -> None:
    decision = decided(COMPLETE, replace(BATCH, query="another", batch=0))
    assert decision is not None and (decision.query, decision.batch, decision.before) == ("another", 0, NO_BATCH)


def test_a_driver_that_lost_its_claim_fails_loudly() -> None:
    taken = claimed(COMPLETE)
    assert taken == replace(COMPLETE, generation=4)
    with pytest.raises(TakenOverError, match=r"Another run of the query has taken over the sink sink .generation 4"):
        decided(taken, BATCH)
    with pytest.raises(TakenOverError, match="generation 0, this run has 3"):
        decided(None, BATCH)
    assert claimed(None).generation == 1


def test_a_decided_batch_is_completed_cancelled_or_torn() -> None:
    decision = decided(COMPLETE, BATCH)
    assert decision is not None
    cancelled = rolled_forward("sink", decision, {ONE: Ended.FENCED, TWO: Ended.FENCED})
    assert cancelled == SinkState("query", 3, 6, 6, offsets=None)
    assert decided(cancelled, BATCH) is not None, "it runs again"
    for ended in ({ONE: Ended.DONE, TWO: Ended.FENCED}, {ONE: Ended.UNKNOWN, TWO: Ended.UNKNOWN}):
        with pytest.raises(TornBatchError, match="Batch 7 of the sink sink was decided"):
            rolled_forward("sink", decision, ended)


def test_an_abort_leaves_the_transactions_of_a_decision() -> None:
    decision = decided(COMPLETE, replace(BATCH, transactions=(ONE,)))
    assert may_abort(decision, (ONE, TWO)) == [TWO]
    assert may_abort(COMPLETE, (ONE, TWO)) == [ONE, TWO] == may_abort(None, (ONE, TWO))


def test_only_ids_of_this_generation_and_earlier_ones_are_swept() -> None:
    later = task_id("sink", 4, RUN, 0, 0)
    earlier = task_id("sink", 1, RUN, 0, 0)
    others = ["sink.driver", "sink2.1.ab.0.0", task_id("sink.1", 1, RUN, 0, 0), "sink.user"]
    decision = decided(COMPLETE, replace(BATCH, transactions=(ONE,)))
    opened = [ONE.transactional_id, TWO.transactional_id, earlier, later, *others]
    assert to_sweep("sink", opened, 3, decision) == [TWO.transactional_id, earlier]
    assert to_sweep("sink", opened, 3, None) == [ONE.transactional_id, TWO.transactional_id, earlier]


def test_a_batch_is_not_decided_if_a_transaction_has_ended() -> None:
    is_open = TransactionState("Ongoing", 10, 5, 1000, 0)
    states = {ONE.transactional_id: is_open, TWO.transactional_id: is_open._replace(producer_id=11)}
    check_open(BATCH, states, 1000)
    for wrong in ("CompleteAbort", "PrepareAbort", "Empty"):
        changed = is_open._replace(state=wrong)
        with pytest.raises(LateBatchError, match=r"less than kafka\.transaction\.timeout\.ms, which is 1000"):
            check_open(BATCH, states | {ONE.transactional_id: changed}, 1000)
    with pytest.raises(LateBatchError):
        check_open(BATCH, states | {ONE.transactional_id: is_open._replace(producer_epoch=6)}, 1000)
    with pytest.raises(LateBatchError):
        check_open(BATCH, {}, 1000)
