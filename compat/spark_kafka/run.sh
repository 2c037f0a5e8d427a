#!/usr/bin/env bash
# Spark's own Kafka connector beside format("klamm"), on the same topics. The jars come from Maven Central into .cache/.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
jars=$root/.cache/spark_kafka
if ! command -v mvn >/dev/null; then
  echo "mvn is missing and could not be installed: apt-get install maven" >&2
  exit 2
fi
if ! cmp -s "$here/pom.xml" "$jars/pom.xml"; then
  rm -rf "$jars" && mkdir -p "$jars"
  mvn -q -B -f "$here/pom.xml" dependency:copy-dependencies -DoutputDirectory="$jars" >&2 || exit 2
  cp "$here/pom.xml" "$jars/pom.xml"
fi
python=$root/.venv/bin/python
[ -x "$python" ] || python=python3
cd "$root" && exec "$python" -m compat.spark_kafka.compare "$1" "$jars"
