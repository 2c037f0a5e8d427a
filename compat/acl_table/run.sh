#!/usr/bin/env bash
# The table of authorization, asked of Apache Kafka. The jars come by Maven into .cache/, as for `make bench PEER=kafka`.
set -u
[ "$1" = after ] && { echo "ok no second phase"; exit 0; }
root=$(cd "$(dirname "$0")/../.." && pwd)
python=$root/.venv/bin/python
[ -x "$python" ] || python=python3
cd "$root" && exec "$python" -m compat.acl_table.check
