#!/usr/bin/env bash
# klamm and Apache Kafka on a ZooKeeper with SASL and access rules. The jars come by Maven into .cache/
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
python=$root/.venv/bin/python
[ -x "$python" ] || python=python3
cd "$root" && exec "$python" -m compat.sasl_zookeeper.check "$1"
