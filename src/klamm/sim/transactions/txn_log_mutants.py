"""Bugs for level 2 with transactions in logs, readers, groups and compaction, one per rule."""

from __future__ import annotations

from typing import Final

from klamm.sim.mutant import Mutant

_A: Final = "klamm.apis."
_L: Final = "klamm.log."
_R: Final = "klamm.replica."
LOG_MUTANTS: Final[dict[str, Mutant]] = {
    "repeated_markers_are_refused": Mutant(
        _L + "producer_state",
        (
            "    if entry.current_txn_first_offset is None:\n"
            "        return None\n"
            "    return Refusal(\n"
            "        ErrorCode.INVALID_PRODUCER_EPOCH,\n"
            '        f"a marker'
        ),
        ('    return Refusal(\n        ErrorCode.INVALID_PRODUCER_EPOCH,\n        f"a marker'),
        first=2,
    ),
    "delayed_fetches_read_open_transactions": Mutant(
        _R + "delayed_fetch",
        "        self._params = params\n",
        (
            "        self._params = params\n"
            "        if params.isolation.name == 'TXN_COMMITTED':\n"
            "            params.isolation = type(params.isolation).HIGH_WATERMARK\n"
        ),
        first=1,
    ),
    "ended_aborts_are_told": Mutant(
        _L + "transaction_index",
        "            if txn.last_offset >= fetch_offset and txn.first_offset",
        "            if txn.first_offset",
        first=8,
        reports="skipped poll",
    ),
    "list_offsets_passes_open_transactions": Mutant(
        _A + "list_offsets",
        ("    return Isolation.TXN_COMMITTED if req.isolation_level == 1 else Isolation.HIGH_WATERMARK\n"),
        "    return Isolation.HIGH_WATERMARK\n",
        first=5,
        reports="unstable end",
    ),
    "duplicates_are_appended": Mutant(
        _L + "producer_state",
        "        return entry.find_duplicate(batch) if entry is not None else None\n",
        "        return None\n",
        first=1,
        also=(
            (
                "        if origin is AppendOrigin.CLIENT and (refusal := _check_sequence(",
                "        if False and (refusal := _check_sequence(",
            ),
        ),
        reports="duplicate",
    ),
    "followers_do_not_tell_aborts": Mutant(
        _R + "partition_reader",
        "    wants_aborted = isolation is _TXN_COMMITTED\n",
        ("    wants_aborted = isolation is _TXN_COMMITTED and partition.leader == partition.broker_id\n"),
        first=3,
        reports="aborted read (G1a)",
    ),
}
