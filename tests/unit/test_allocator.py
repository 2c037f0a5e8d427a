"""The allocator's settings, in a process of their own: they hold for the whole process."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

GROWS = dedent(
    """
    from pathlib import Path
    from klamm import allocator

    def heap():
        maps = Path("/proc/self/maps").read_text().splitlines()
        low, high = next(line.split()[0].split("-") for line in maps if line.endswith("[heap]"))
        return int(high, 16) - int(low, 16)

    installed = allocator.install()
    before = heap()
    for _ in range(3):
        buffer = bytearray(3 * allocator.MAPPED_BYTES)
        del buffer
    kept = bytearray(3 * allocator.MAPPED_BYTES)
    print(installed, heap() - before < allocator.MAPPED_BYTES)
    """
)


def test_large_blocks_stay_mapped_after_others_were_freed() -> None:
    run = subprocess.run([sys.executable, "-c", GROWS], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", "True"]
