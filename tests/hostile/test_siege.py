"""All attacks together with ordinary load on three brokers: nothing acknowledged is lost and memory is bounded.

The short form carries out every attack once, at a tenth of its size. KLAMM_SIEGE_SECONDS, KLAMM_SIEGE_SIZE,
KLAMM_SIEGE_ATTACKERS and KLAMM_SIEGE_SEED choose a longer or larger one, KLAMM_SIEGE_ONLY=giant_fetch,churn chooses
attacks; the report with the longest waits is printed either way. From 600 seconds on it is the long form: two
attackers at full size, and the waits of the probes are bounded.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from klamm.testing import LocalCluster
from tests.support.siege import (
    LONG_S,
    LONGEST_WAIT_S,
    P99_DURING_GIANT_FETCH_S,
    WAIT_S,
    Siege,
    chosen_attackers,
    chosen_attacks,
    chosen_seconds,
    chosen_seed,
    chosen_size,
    percentile,
)

SECONDS = chosen_seconds(5)
SIZE = chosen_size(0.1 if SECONDS < LONG_S else 1)
ATTACKERS = chosen_attackers(1 if SECONDS < LONG_S else 2)
ONLY = chosen_attacks()
CEILING_BYTES = 1 << 30
"""Per process. Today's queue limits allow a broker about 600 MiB of requests and responses in progress."""


@pytest.mark.timeout(SECONDS + 1_200)
def test_siege(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with LocalCluster(brokers=3, data_dir=tmp_path, start_timeout_s=WAIT_S) as cluster:
        siege = Siege(cluster, seconds=SECONDS, seed=chosen_seed(), size=SIZE, attackers=ATTACKERS, only=ONLY)
        try:
            problems = siege.run()
        finally:
            with capsys.disabled():
                print("\n" + siege.report())
        assert not problems, "\n".join(problems)
        assert siege.account.acked_count
        assert max(siege.peak_bytes.values()) < CEILING_BYTES, siege.peak_bytes
        if siege.is_long:
            assert siege.longest_wait_s < LONGEST_WAIT_S
            if not ONLY or "giant_fetch" in ONLY:
                assert percentile(siege.waits_by_attack()["giant_fetch"], 0.99) < P99_DURING_GIANT_FETCH_S
        for broker_id in cluster.broker_ids:
            assert "Traceback" not in cluster.logs(broker_id).read_text(), f"see {cluster.logs(broker_id)}"
