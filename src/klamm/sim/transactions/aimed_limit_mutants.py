"""Bugs at the limits of a cluster that aimed scenarios catch. Each names its scenario."""

from __future__ import annotations

from typing import Final

from klamm.sim.mutant import aimed

_A: Final = "klamm.apis."
_R: Final = "klamm.replica."

OF_LIMITS: Final = {
    "two_brokers_need_three_replicas": aimed(
        "cluster of two",
        _A + "missing_topics",
        "        factor = max(1, min(factor, live_brokers))\n",
        "        pass\n",
    ),
    "a_number_of_replicas_that_is_set_is_lowered": aimed(
        "replicas that are set",
        _A + "missing_topics",
        "    if not _is_set(config, _TRANSACTION_FACTOR):\n",
        "    if True:\n",
    ),
    "two_replicas_need_both": aimed(
        "cluster of two",
        _A + "missing_topics",
        "        min_isr = min(min_isr, max(1, factor - 1))\n",
        "        pass\n",
    ),
    "late_transactions_are_not_reported": aimed(
        "late transaction",
        _R + "transaction_watch",
        "                late_partitions += oldest_ms < late_before_ms\n",
        "                pass\n",
    ),
    "late_transactions_are_reported_by_followers": aimed(
        "late transaction",
        _R + "transaction_watch",
        "            if partition.is_leader and (oldest_ms",
        "            if (oldest_ms",
    ),
    "producer_ids_do_not_end": aimed(
        "last producer ids",
        "klamm.controller.producer_ids",
        "        if start > MAX_PRODUCER_ID - size:\n",
        "        if False:\n",
    ),
}
