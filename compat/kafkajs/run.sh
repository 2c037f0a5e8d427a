#!/usr/bin/env bash
# kafkajs 2.2.4 from npm: sends ApiVersions on its first connection only, and middle-aged versions of everything.
set -eu
cd "$(dirname "$0")"
if ! command -v npm >/dev/null; then
  echo "npm is missing: install Node.js 18 or newer (Debian: apt-get install nodejs npm)" >&2
  exit 2
fi
if [ package-lock.json -nt node_modules/.stamp ]; then
  npm ci --no-audit --no-fund --silent >&2
  touch node_modules/.stamp
fi
exec node compat.js "$1"
