"""Bugs for level 2 with transactions in logs, readers, groups and compaction, one per rule."""

from __future__ import annotations

from typing import Final

from klamm.sim.mutant import Mutant

_A: Final = "klamm.apis."
_L: Final = "klamm.log."
_R: Final = "klamm.replica."
LOG_MUTANTS: Final[dict[str, Mutant]] = {
    "delayed_fetches_read_open_transactions": Mutant(
        _R + "delayed_fetch",
        "        self._params = params\n",
        (
            "        self._params = params\n"
            "        if params.isolation.name == 'TXN_COMMITTED':\n"
            "            params.isolation = type(params.isolation).HIGH_WATERMARK\n"
        ),
    ),
    "ended_aborts_are_listed": Mutant(
        _L + "transaction_index",
        "range(bisect_left(entries, fetch_offset, key=_last_offset), len(entries))",
        "range(len(entries))",
        first=6,
        reports="skipped poll",
    ),
    "list_offsets_passes_open_transactions": Mutant(
        _A + "list_offsets",
        "    return _TXN_COMMITTED if req.isolation_level == 1 else _HIGH_WATERMARK\n",
        "    return _HIGH_WATERMARK\n",
        first=5,
        reports="unstable end",
    ),
    "duplicates_are_appended": Mutant(
        _L + "producer_state",
        "        return entry.find_duplicate(batch) if entry is not None else None\n",
        "        return None\n",
        first=38,
        also=(
            (
                "        if origin is AppendOrigin.CLIENT and (refusal := _check_sequence(",
                "        if False and (refusal := _check_sequence(",
            ),
        ),
        reports="duplicate",
    ),
    "batches_are_acknowledged_at_the_start_of_the_log": Mutant(
        _A + "produce",
        "            base_offset=result.base_offset,\n",
        "            base_offset=result.log_start_offset,\n",
        reports="misplaced write",
    ),
    "a_reader_at_the_stable_end_is_out_of_range": Mutant(
        _R + "partition_reader",
        "    if fetch.fetch_offset == end:\n        return read\n",
        "    if fetch.fetch_offset == end:\n"
        "        read.error = ErrorCode.OFFSET_OUT_OF_RANGE if end < log.high_watermark else read.error\n"
        "        return read\n",
        reports="non-monotonic poll",
    ),
    "followers_list_no_aborts": Mutant(
        _R + "partition_reader",
        "    wants_aborted = isolation is _TXN_COMMITTED\n",
        ("    wants_aborted = isolation is _TXN_COMMITTED and partition.leader == partition.broker_id\n"),
        first=3,
        reports="aborted read (G1a)",
    ),
}
