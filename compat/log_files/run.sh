#!/usr/bin/env bash
# Log files of klamm in Kafka's DumpLogSegments. The jars come by Maven into .cache/, as for `make bench PEER=kafka`.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
python=$root/.venv/bin/python
[ -x "$python" ] || python=python3
cd "$root" && exec "$python" -m compat.log_files.check "$1"
