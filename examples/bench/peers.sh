#!/usr/bin/env bash
# Dunlin beside sglang-router, vllm-router, haproxy and nginx: how well each chooses among unequal engines, and what it
# costs to go through it. Prints Markdown. About half an hour; DUNLIN_BENCH_QUICK=1 for rough numbers in minutes.
# Installs the two routers from PyPI into a folder of their own, haproxy and nginx from Debian when run as root there;
# what can't be installed is left out.
# Usage: examples/bench/peers.sh [routing,slow,light,path]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

cache=${XDG_CACHE_HOME:-$HOME/.cache}/dunlin-peers
if [ ! -x "$cache/venv/bin/vllm-router" ]; then
  python3 -m venv "$cache/venv"
  for router in sglang-router==0.3.2 vllm-router==0.1.17; do
    "$cache/venv/bin/pip" install --quiet "$router" || echo "note: $router cannot be installed here" >&2
  done
fi

missing=()
for program in haproxy nginx; do
  command -v "$program" >/dev/null || [ -x "/usr/sbin/$program" ] || missing+=("$program")
done
if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  else
    echo "note: not installed, and left out: ${missing[*]} (apt-get install ${missing[*]})" >&2
  fi
fi

# Each keeps a connection for every client and every engine.
ulimit -n "$(ulimit -Hn)"
export DUNLIN_PEERS_PATH=$cache/venv/bin
[ $# -eq 0 ] || export DUNLIN_PEERS_ONLY=$1
exec cargo bench --quiet --bench peers
