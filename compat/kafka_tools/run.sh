#!/usr/bin/env bash
# Kafka's command-line tools on a secured cluster. The jars come by Maven into .cache/, as for `make bench PEER=kafka`.
set -u
[ "$1" = after ] && { echo "ok no second phase"; exit 0; }
root=$(cd "$(dirname "$0")/../.." && pwd)
python=$root/.venv/bin/python
[ -x "$python" ] || python=python3
cd "$root" && exec "$python" -m compat.kafka_tools.check
