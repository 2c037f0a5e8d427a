#!/usr/bin/env bash
# Kafka Streams, exactly once, with kills. The jars come by Maven into .cache/.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
python=$root/.venv/bin/python
[ -x "$python" ] || python=python3
cd "$root" && exec "$python" -m compat.kafka_streams.check "$1"
