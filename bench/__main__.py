"""`make bench`: one broker beside its ceiling and the control plane; with `--peer kafka` klamm beside Apache Kafka."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys

from bench import one_broker, peer


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--peer", choices=["kafka"], help="compare with Apache Kafka, which Maven fetches")
    parser.add_argument("--quick", action="store_true", help="one round, fewer records")
    parser.add_argument("--only", choices=peer.PARTS, help="with --peer: this part alone; RESULTS.md is not written")
    args = parser.parse_args()
    if args.peer:
        parts = (args.only,) if args.only else peer.PARTS
        sys.exit(1 if peer.run(args.quick, parts, write=args.only is None) else 0)
    one_broker.run(args.quick)
    if importlib.util.find_spec("bench.control_plane.__main__") is not None:
        command = [sys.executable, "-m", "bench.control_plane", *(["--quick"] if args.quick else [])]
        sys.exit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
