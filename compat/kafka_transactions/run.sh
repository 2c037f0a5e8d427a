#!/usr/bin/env bash
# Apache Kafka's kafka-transactions.sh. The jars come by Maven into .cache/, as for `make bench PEER=kafka`.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
python=$root/.venv/bin/python
[ -x "$python" ] || python=python3
cd "$root" && exec "$python" -m compat.kafka_transactions.check "$1"
