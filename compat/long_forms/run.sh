#!/usr/bin/env bash
# The long forms of tests whose short forms `make test` runs. They start their own brokers.
set -u
[ "$1" = before ] || { echo "ok nothing to repeat after a restart"; exit 0; }
root=$(cd "$(dirname "$0")/../.." && pwd)
python=$root/.venv/bin/python
[ -x "$python" ] || python=python3
cd "$root" || exit 1

run() { # NAME ARGUMENTS...
    local name=$1
    shift
    if shown=$("$python" -m pytest -q "$@" 2>&1); then
        echo "ok $name"
    else
        echo "not ok $name: $(tail -n 1 <<<"$shown")"
        echo "$shown" >&2
    fi
}

chaos=tests/cluster/test_chaos.py
matrix=tests/spark/table/test_crash_matrix.py
marked=(-m long -n 2 --dist loadgroup --no-loadscope-reorder --deselect "$chaos")
# tests/sim has its long forms in `make sim`; the other directories have none.
marked+=(tests/{tidy,cluster,clients,hostile,viewer,spark,dist})
if [ -n "${KLAMM_QUICK:-}" ]; then
    run "tests that are marked as long" "${marked[@]}"
    KLAMM_CHAOS_SECONDS=24 run "chaos for 24 s" "$chaos"
    exit 0
fi
run "tests that are marked as long" --deselect "$matrix" "${marked[@]}"
KLAMM_CRASH_MATRIX=long run "table of Spark whoever is killed" "$matrix"
KLAMM_CHAOS_SECONDS=60 run "chaos for a minute" "$chaos"
KLAMM_SIEGE_SECONDS=600 run "ten minutes of siege" tests/hostile/test_siege.py
KLAMM_FUZZ_FRAMES=1000000 run "a million damaged frames" tests/property/test_fuzz_frames.py
