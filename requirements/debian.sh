#!/usr/bin/env bash
# Installs Debian packages that a target of the Makefile needs, or says what to do.
set -eu
as_root=""
if [ "$(id -u)" -ne 0 ]; then
  if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root="sudo"
  else
    echo "Missing: $*. Install with: sudo apt-get install $*" >&2
    exit 1
  fi
fi
if ! command -v apt-get >/dev/null; then
  echo "Missing: $*. This machine has no apt-get; install them with its package manager." >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -qq
$as_root apt-get install -y -qq --no-install-recommends "$@" >/dev/null
