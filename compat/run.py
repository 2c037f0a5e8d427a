"""Runs the clients of the folders beside this file against a klamm broker: `python compat/run.py [--quick] [NAME ...]`.

A folder holds `run.sh`, which is called twice, as `run.sh before` and `run.sh after`; in between the broker is
restarted. It prints one line per check, `ok NAME` or `not ok NAME: reason`. `known-failures.txt` lists the names that
may fail, with the reason: a name that fails and is not listed breaks the run, and so does a listed one that passes.
A folder with a file `not-quick` is left out of the quick form unless it is named. A folder with a file `secured` runs
twice, the second time with SASL_SSL, SCRAM and access control: then `KLAMM_CLIENT_PROPERTIES` names a file with the
settings of security, as librdkafka has them, and `KLAMM_JAVA_PROPERTIES` one for Java.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from klamm.security.certificates.private_files import write_private
from klamm.security.sasl.mechanisms import SCRAM_SHA_512
from klamm.testing import LocalCluster

HERE = Path(__file__).parent
TIMEOUT_S = 5_400


def known_failures(folder: Path) -> set[str]:
    path = folder / "known-failures.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return {line.split(":")[0].strip() for line in lines if line.strip() and not line.startswith("#")}


def is_long(folder: Path) -> bool:
    return (folder / "not-quick").exists()


def is_secured(folder: Path) -> bool:
    return (folder / "secured").exists()


def label_of(folder: Path, secured: bool) -> str:
    return f"{folder.name} secured" if secured else folder.name


def run_phase(folder: Path, phase: str, env: dict[str, str], label: str) -> dict[str, bool]:
    done = subprocess.run(
        ["bash", str(folder / "run.sh"), phase], env=env, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    results: dict[str, bool] = {}
    for line in done.stdout.splitlines():
        if line.startswith(("ok ", "not ok ")):
            passed = line.startswith("ok ")
            results[line.removeprefix("not ").removeprefix("ok ").split(":")[0].strip()] = passed
            print(f"  {label:10} {line}", flush=True)
    if done.returncode != 0 or not results:
        sys.stderr.write(f"{label}: run.sh {phase} ended with {done.returncode}\n")
        sys.stderr.write(done.stdout[-3000:] + done.stderr[-3000:])
        results[f"run.sh {phase}"] = False
    elif not all(results.values()):
        sys.stderr.write(done.stderr[-6000:])
    return results


def client_properties(cluster: LocalCluster) -> Path:
    """Write the settings of a super user to a file that only this user may read."""
    path = cluster.data_dir / "librdkafka.properties"
    lines = (f"{key}={value}\n" for key, value in cluster.client_config().items() if key != "bootstrap.servers")
    write_private(path, "".join(lines).encode())
    return path


def run_client(folder: Path, quick: bool, secured: bool) -> tuple[int, int]:
    label = label_of(folder, secured)
    sasl = SCRAM_SHA_512 if secured else None
    with LocalCluster(brokers=1, tls=secured, sasl=sasl, acls=secured) as cluster:
        env = {**os.environ, "KLAMM_BOOTSTRAP_SERVERS": cluster.bootstrap_servers, "KLAMM_QUICK": "1" if quick else ""}
        if secured:
            env["KLAMM_CLIENT_PROPERTIES"] = str(client_properties(cluster))
            env["KLAMM_JAVA_PROPERTIES"] = str(cluster.write_client_properties())
        results = run_phase(folder, "before", env, label)
        for broker_id in cluster.broker_ids:
            cluster.stop(broker_id)
            cluster.start(broker_id)
        results |= run_phase(folder, "after", env, label)
    known = known_failures(folder)
    wrong = [name for name, passed in results.items() if passed == (name in known)]
    for name in wrong:
        what = "passes now: take it off known-failures.txt" if results[name] else "failed and is not a known failure"
        print(f"  {label:10} {name}: {what}", flush=True)
    return len(results) - len(wrong), len(wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="folders of compat/ to run; all by default")
    parser.add_argument("--quick", action="store_true", help="fewer records and rounds")
    args = parser.parse_args()
    folders = sorted(p.parent for p in HERE.glob("*/run.sh"))
    chosen = [f for f in folders if f.name in args.names or not (args.names or (args.quick and is_long(f)))]
    if not chosen:
        parser.error(f"no such client; there are: {', '.join(f.name for f in folders)}")
    runs = [(folder, secured) for folder in chosen for secured in (False, True) if not secured or is_secured(folder)]
    totals = [run_client(folder, args.quick, secured) for folder, secured in runs]
    passed, failed = sum(t[0] for t in totals), sum(t[1] for t in totals)
    print(f"compat: {passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
