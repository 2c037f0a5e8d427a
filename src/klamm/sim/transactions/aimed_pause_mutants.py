"""Bugs of coordinators that were paused, which aimed scenarios catch (decision 0042). Each names its scenario."""

from __future__ import annotations

from typing import Final

from klamm.sim.mutant import aimed

_C: Final = "klamm.coordinator."
_T: Final = "klamm.coordinator.transaction."
_R: Final = "klamm.replica."
_MORE: Final = "more requests after a pause"

OF_PAUSES: Final = {
    "a_deposed_coordinator_answers_from_memory": aimed(
        "paused transaction coordinator",
        _T + "transaction_coordinator",
        "        if answer in _HARMLESS or self._manager.is_confirmed(partition):\n",
        "        if True:\n",
    ),
    "a_deposed_coordinator_refuses_an_end": aimed(
        "paused transaction coordinator with a bump",
        _T + "transaction_coordinator",
        "        answer = self._from_memory(partition, decision)\n",
        "        answer = decision\n",
    ),
    "a_deposed_coordinator_verifies_partitions": aimed(
        _MORE,
        _T + "transaction_coordinator",
        "        if not self._manager.is_confirmed(found[0]):\n",
        "        if False:\n",
    ),
    "a_deposed_coordinator_describes_transactions": aimed(
        _MORE,
        _T + "transaction_coordinator",
        "        if not self._manager.is_confirmed(found[0]):  # Spark's sink decides by the answer\n",
        "        if False:\n",
    ),
    "a_deposed_coordinator_adds_partitions": aimed(
        _MORE,
        _T + "transaction_coordinator",
        "                result.complete(self._from_memory(partition, decision))\n",
        "                result.complete(decision)\n",
    ),
    "a_deposed_coordinator_fences_a_recovery": aimed(
        _MORE,
        _T + "transaction_coordinator",
        "                answer(txn, InitProducerIdResult(self._from_memory(partition, decision)))\n",
        "                answer(txn, InitProducerIdResult(decision))\n",
    ),
    "a_deposed_coordinator_knows_all_producers": aimed(
        _MORE,
        _T + "transaction_coordinator",
        "            return self._from_memory(partition, ErrorCode.INVALID_PRODUCER_ID_MAPPING)\n",
        "            return ErrorCode.INVALID_PRODUCER_ID_MAPPING\n",
    ),
    "a_confirmation_lasts_for_a_session": aimed(
        "pause before a ping",
        _C + "broker_adapters",
        "min(config.zookeeper_session_timeout_ms * 3 // 5, LONGEST_CONFIRMATION_MS)",
        "min(config.zookeeper_session_timeout_ms, LONGEST_CONFIRMATION_MS)",
    ),
    "an_election_confirms_the_leader": aimed(
        "late election",
        _R + "remote_replica",
        "        self._confirmed_ms = 0\n        self.last_sent",
        "        self._confirmed_ms = last_caught_up_time_ms\n        self.last_sent",
    ),
    "a_deposed_group_coordinator_returns_offsets": aimed(
        "paused group coordinator",
        _C + "group_coordinator",
        "        if require_stable and not self._manager.is_confirmed(group_id):\n",
        "        if False:\n",
    ),
    "the_wall_clock_confirms_the_leader": aimed(
        "paused group coordinator whose clock went back",
        "klamm.clock",
        "    return _LONG_AGO_MS + int(clock.monotonic() * 1000)\n",
        "    return clock.now_ms()\n",
    ),
    "the_arrival_of_a_fetch_confirms_the_leader": aimed(
        "paused group coordinator",
        _R + "remote_replica",
        "return self._confirmed_ms if session is None else max(self._confirmed_ms, session.previous_fetch_ms)",
        "return self._confirmed_ms if session is None else max(self._confirmed_ms, session.last_fetch_ms)",
    ),
    "the_last_fetch_of_a_session_confirms_the_leader": aimed(
        _MORE,
        _R + "remote_replica",
        "        self._confirmed_ms = max(self._confirmed_ms, session.previous_fetch_ms)\n",
        "        self._confirmed_ms = max(self._confirmed_ms, session.last_fetch_ms)\n",
    ),
    "a_fetch_without_a_session_confirms_the_leader": aimed(
        "more requests after a pause and a write",
        _R + "remote_replica",
        "        self._confirmed_ms = max(self._confirmed_ms, self.last_fetch_time_ms)\n",
        "        self._confirmed_ms = max(self._confirmed_ms, now_ms)\n",
    ),
}
