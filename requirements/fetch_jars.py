"""Fetches the jars of `jars.lock` with Maven into `.cache/jars`, and checks their hashes.

A jar that cannot be fetched is reported, and only the tests that need it fail.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent / ".cache" / "jars"


def fetch(coordinate: str, digest: str) -> None:
    """Into a folder beside, moved when the hash is right: a fetch that was cut off leaves nothing to trip over."""
    _, artifact, version = coordinate.split(":")
    target = FOLDER / f"{artifact}-{version}.jar"
    if target.exists():
        return
    print(f"Fetching {coordinate} with Maven", flush=True)
    partial = FOLDER / f"{target.name}.{os.getpid()}"
    command = ["mvn", "--quiet", "--batch-mode", "dependency:copy", f"-Dartifact={coordinate}"]
    done = subprocess.run(
        [*command, f"-DoutputDirectory={partial}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != 0:
        raise OSError(f"Maven failed: {done.stdout[-500:]}")
    found = hashlib.sha256((partial / target.name).read_bytes()).hexdigest()
    if found != digest:
        raise OSError(f"its SHA-256 is {found}, jars.lock has {digest}")
    (partial / target.name).rename(target)
    shutil.rmtree(partial)


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for line in (HERE / "jars.lock").read_text().splitlines():
        if line and not line.startswith("#"):
            coordinate, digest = line.split()
            try:
                fetch(coordinate, digest)
            except OSError as error:
                sys.stderr.write(f"{coordinate} could not be fetched: {error}. Tests that need it will fail.\n")


if __name__ == "__main__":
    main()
