#!/usr/bin/env bash
# Transactions in clusters of klamm and Apache Kafka. The jars come by Maven into .cache/, as for `make bench PEER=kafka`.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
python=$root/.venv/bin/python
[ -x "$python" ] || python=python3
cd "$root" && exec "$python" -m compat.mixed_cluster.transactions "$1"
