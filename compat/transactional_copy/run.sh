#!/usr/bin/env bash
# A topic copied in transactions by Java clients, with kills. The jars come by Maven into .cache/.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
python=$root/.venv/bin/python
[ -x "$python" ] || python=python3
cd "$root" && exec "$python" -m compat.transactional_copy.check "$1"
