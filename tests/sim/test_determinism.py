"""A seed gives the same run on every machine: whatever its speed, its memory and the order of Python's sets are."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from klamm.replica import state_change
from klamm.sim import runner
from klamm.sim.cluster_runner import fingerprint

ODD_MACHINE = """
import gc, random, time

chance = random.Random({number})
addresses = [bytearray(chance.randrange(1, 5000)) for _ in range(20_000)]
del addresses[::3]
gc.set_threshold(chance.choice((50, 700, 5000)), 3, 3)
passed = [0]

def jumping(real, unit):
    def read():
        passed[0] += chance.choice((0, 0, 1, 100))
        return real() + passed[0] * unit
    return read

for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time"):
    setattr(time, name, jumping(getattr(time, name), 0.01))
    setattr(time, name + "_ns", jumping(getattr(time, name + "_ns"), 10_000_000))
"""
"""Its clocks jump, memory is handed out in another order, and garbage is collected at other moments."""


def on_odd_machines(program: str) -> set[str]:
    """Return the output of the program, from separate processes: Python chooses its hash seed at startup."""
    return {
        subprocess.run(
            [sys.executable, "-c", ODD_MACHINE.format(number=number) + program],
            env=os.environ | {"PYTHONHASHSEED": str(number)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for number in (0, 1, 4711)
    }


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("seed", "slice_s"),
    [
        (7, state_change.SLICE_S),
        pytest.param(12, state_change.SLICE_S, marks=pytest.mark.long),
        pytest.param(7_001, -1.0, marks=pytest.mark.long),
    ],
)
def test_level_2(seed: int, slice_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where every control request is applied one partition at a time: slices are of virtual time."""
    monkeypatch.setattr(state_change, "SLICE_S", slice_s)
    program = f"""
from klamm.replica import state_change
from klamm.sim.cluster_runner import fingerprint

state_change.SLICE_S = {slice_s}
print(fingerprint({seed}))
"""
    assert on_odd_machines(program) == {fingerprint(seed)}


@pytest.mark.timeout(600)
def test_level_1() -> None:
    program = """
from klamm.sim import runner

for seed in (0, 36, 59):
    print(runner.fingerprint(seed))
"""
    (printed,) = on_odd_machines(program)
    assert printed.splitlines() == [runner.fingerprint(seed) for seed in (0, 36, 59)]
