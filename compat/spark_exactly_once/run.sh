#!/usr/bin/env bash
# Exactly once from Spark into Apache Kafka, with kills. The jars come by Maven into .cache/, as for `make bench PEER=kafka`.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
python=$root/.venv/bin/python
[ -x "$python" ] || python=python3
cd "$root" && exec "$python" -m compat.spark_exactly_once.check "$1"
