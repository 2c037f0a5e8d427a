#!/usr/bin/env bash
# kcat 1.7 on librdkafka 2.0: an old C client that looks for exact old versions of the group APIs.
set -u
phase=$1
b=$KLAMM_BOOTSTRAP_SERVERS
if ! command -v kcat >/dev/null; then
  echo "kcat is missing and could not be installed: apt-get install kcat" >&2
  exit 2
fi
# kcat reads this file by itself. The empty one keeps a configuration of the user out of the run.
export KCAT_CONFIG=${KLAMM_CLIENT_PROPERTIES:-/dev/null}
count=2000
[ -n "${KLAMM_QUICK:-}" ] && count=200

check() { # check NAME EXPECTED ACTUAL
  if [ "$2" = "$3" ]; then echo "ok $1"; else echo "not ok $1: expected '${2:0:80}', got '${3:0:80}'"; fi
}

if [ "$phase" = before ]; then
  check "metadata" "1 brokers:" "$(kcat -b "$b" -L 2>/dev/null | sed -n 's/^ \(1 brokers:\)$/\1/p')"
  for codec in none gzip snappy lz4 zstd; do
    seq 1 $count | kcat -b "$b" -P -t "kcat-$codec" -z $codec -X linger.ms=20 2>/dev/null
    sum=$(kcat -b "$b" -C -t "kcat-$codec" -o beginning -e -q 2>/dev/null | md5sum)
    check "produce and consume $codec" "$(seq 1 $count | md5sum)" "$sum"
  done
  printf 'k1:v1\nk2:\n' | kcat -b "$b" -P -t kcat-shapes -K: -H trace=abc -H empty= 2>/dev/null
  printf 'gone:' | kcat -b "$b" -P -t kcat-shapes -K: -Z 2>/dev/null
  got=$(kcat -b "$b" -C -t kcat-shapes -o beginning -e -q -f '%k|%S|%h;' 2>/dev/null)
  check "keys, headers, empty and null values" "k1|2|trace=abc,empty=;k2|0|trace=abc,empty=;gone|-1|;" "$got"
  stamp=$(kcat -b "$b" -C -t kcat-shapes -o beginning -c 1 -e -q -f '%T' 2>/dev/null)
  now=$(date +%s%3N)
  [ "$stamp" -gt $((now - 3600000)) ] 2>/dev/null && [ "$stamp" -le $((now + 1000)) ]
  check "timestamps" 0 $?
  check "offset by time" "k1" "$(kcat -b "$b" -C -t kcat-shapes -o "s@$((stamp - 1))" -c 1 -e -q -f '%k' 2>/dev/null)"
  check "query offsets" "kcat-shapes [0] offset 3" "$(kcat -b "$b" -Q -t kcat-shapes:0:-1 2>/dev/null)"
  seq 1 $count | kcat -b "$b" -P -t kcat-once -X enable.idempotence=true 2>/dev/null
  check "idempotent producer" "$count" "$(kcat -b "$b" -C -t kcat-once -o beginning -e -q 2>/dev/null | wc -l)"
  got=$(timeout 60 kcat -b "$b" -G kcat-group -X auto.offset.reset=earliest -c 3 -q kcat-shapes -f '%k;' 2>/dev/null)
  check "group consumer" "k1;k2;gone;" "$got"
else
  printf 'after:x' | kcat -b "$b" -P -t kcat-shapes -K: 2>/dev/null
  got=$(timeout 60 kcat -b "$b" -G kcat-group -X auto.offset.reset=earliest -c 1 -q kcat-shapes -f '%k;' 2>/dev/null)
  check "group resumes after a restart" "after;" "$got"
fi
