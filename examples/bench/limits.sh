#!/usr/bin/env bash
# Three endpoints, four agents, a thousand keys: whether each key's limit holds over all endpoints, under load at random.
# Usage: examples/bench/limits.sh [MINUTES] [KEYS] [LIMIT] [OFFERED]: OFFERED is how often is asked, a multiple of the limit
# DUNLIN names the executable [target/release/dunlin]; CSV a file for how many passed of each key in each minute.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

minutes=${1:-3} keys=${2:-1000} limit=${3:-6} offered=${4:-2}
dunlin=${DUNLIN:-target/release/dunlin}
work=$(mktemp -d)
pids=()
stop() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$work"
}
trap stop EXIT

unset DUNLIN_HOME
here=(--no-mdns --listen /ip4/127.0.0.1/tcp/0)
start() {  # NAME ARGS...: a node in the background
  local name=$1
  shift
  "$dunlin" --home "$work/$name" "$@" "${here[@]}" >"$work/$name.log" 2>&1 &
  pids+=($!)
}
up() {  # NAME: waits for a node
  for _ in $(seq 200); do
    "$dunlin" --home "$work/$1" status >/dev/null 2>&1 && return
    sleep 0.1
  done
  echo "$1 did not start:" >&2
  tail -n 20 "$work/$1.log" >&2
  exit 1
}
endpoint() { "$dunlin" --home "$work/$1" status --output json | sed -n 's/.*"endpoint": "\(.*\)",/\1/p'; }

"$dunlin" --home "$work/proxy1" mesh create >/dev/null
start proxy1 proxy --http 127.0.0.1:0 --admin-http 127.0.0.1:0
up proxy1
for n in 2 3; do
  token=$("$dunlin" --home "$work/proxy1" invite --role proxy)
  "$dunlin" --home "$work/proxy$n" join "$token" >/dev/null
  start "proxy$n" proxy --http 127.0.0.1:0
  up "proxy$n"
done
for n in 1 2 3 4; do
  token=$("$dunlin" --home "$work/proxy1" invite --role agent)
  "$dunlin" --home "$work/agent$n" join "$token" >/dev/null
  "$dunlin" --home "$work/agent$n" agent "${here[@]}" --launch demo -- --tokens-per-second 0 --slots 64 \
    >"$work/agent$n.log" 2>&1 &
  pids+=($!)
  up "agent$n"
done

admin=$(sed -n 's/^admin *\(http[^ ]*\) .*/\1/p' "$work/proxy1.log")
key=$("$dunlin" --home "$work/proxy1" keys create --admin)
python3 examples/bench/limits.py --admin "$admin" --key "$key" --minutes "$minutes" --keys "$keys" --limit "$limit" --offered "$offered" \
  ${CSV:+--csv "$CSV"} \
  "$(endpoint proxy1)" "$(endpoint proxy2)" "$(endpoint proxy3)"
