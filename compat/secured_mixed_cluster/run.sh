#!/usr/bin/env bash
# klamm and Apache Kafka in one cluster with SASL_SSL and access control. The jars come by Maven into .cache/.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
python=$root/.venv/bin/python
[ -x "$python" ] || python=python3
cd "$root" || exit
"$python" -m compat.secured_mixed_cluster.check "$1" || exit
[ "$1" = before ] || [ -n "${KLAMM_QUICK:-}" ] || exec "$python" -m compat.secured_mixed_cluster.transactions
