#!/usr/bin/env bash
# What the Dockerfile promises, tried without a container runtime: an executable that needs nothing beside it. It lies alone
# in a folder that is the root, which is read-only but for volumes, as the image's user, with no network but loopback.
# Usage: tests/static.sh EXECUTABLE     Needs root, util-linux, iproute2, binutils and python3.
set -euo pipefail

user=65532
# Until something is there, seconds. Generous: a debug build on a busy machine.
patience=60

fail() {
  echo "tests/static.sh: $*" >&2
  for log in "${logs:-/nowhere}"/*; do
    if [ -f "$log" ]; then echo "-- ${log##*/}"; tail -n 20 "$log"; fi
  done >&2
  exit 1
}

# An interpreter, or libraries, would have to be in the image.
needs_nothing() {
  if readelf --program-headers "$1" | grep -q INTERP || readelf --dynamic "$1" | grep -q NEEDED; then
    fail "$1 is linked dynamically: $(readelf --dynamic "$1" | grep NEEDED || true)"
  fi
}

# Everything below `/`: $1. Volumes are what is named after it, and what a process of another user could not write into.
root_of() {
  local root=$1
  shift
  for volume in "$@"; do
    mkdir -p "$root/$volume"
  done
  mount --bind "$root" "$root"
  mount -o remount,bind,ro "$root"
  for volume in "$@"; do
    mount -t tmpfs -o "mode=0770,uid=$user,gid=$user,nosuid" tmpfs "$root/$volume"
  done
}

# Begins a command in a root, as the image's user and with no environment but what the image sets. Words, not a function:
# what is started in the background with them is the process itself, which gets the signals.
enter=(env -i DUNLIN_HOME=/state "$(command -v chroot)" "--userspec=$user:$user")

# Waits until a command works.
until_it_works() {
  local what=$1 end=$((SECONDS + patience))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || fail "$what did not come"
    sleep 0.2
  done
}

# The text that the endpoint of the node answers for a model.
answer() {
  python3 - "$1" <<'PYTHON'
import json, sys, urllib.request
body = json.dumps({"model": sys.argv[1], "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}).encode()
request = urllib.request.Request("http://127.0.0.1:8480/v1/chat/completions", body, {"content-type": "application/json"})
with urllib.request.urlopen(request, timeout=20) as answer:
    text = json.load(answer)["choices"][0]["message"]["content"]
assert text, "an empty answer"
print(text)
PYTHON
}

# The agent of the pod says that it serves.
ready() {
  python3 -c 'import urllib.request; urllib.request.urlopen("http://127.0.0.1:8481/ready", timeout=5)'
}

# One node with everything in it, in a root where there is nothing else at all: not even /proc, /dev, /etc and /tmp.
alone() {
  local root=$scratch/alone
  mkdir "$root"
  cp "$executable" "$root/dunlin"
  root_of "$root" state
  local version
  version=$("${enter[@]}" "$root" /dunlin --version) || fail "--version does not work"
  "${enter[@]}" "$root" /dunlin up --no-auth --no-mdns --listen /ip4/127.0.0.1/tcp/4480 >"$logs/up" 2>&1 &
  until_it_works "an answer" answer demo
  echo "$version, alone in its root: $(answer demo)"
}

# The two containers of a replica: the agent's, and that of an engine whose image has nothing of dunlin, which finds the
# executable on the volume that they share. A container runtime adds /proc and /dev.
pod() {
  local agent=$scratch/agent engine=$scratch/engine token
  mkdir "$agent" "$engine"
  cp "$executable" "$agent/dunlin"
  for root in "$agent" "$engine"; do
    mkdir -p "$root/proc" "$root/dev"
    touch "$root/dev/null" "$root/dev/urandom"
  done
  root_of "$agent" state shared
  root_of "$engine" shared
  mount --bind "$agent/shared" "$engine/shared"
  for root in "$agent" "$engine"; do
    mount -t proc proc "$root/proc"
    for device in null urandom; do mount --bind "/dev/$device" "$root/dev/$device"; done
  done
  token=$("${enter[@]}" "$scratch/alone" /dunlin invite --role agent) || fail "no invitation"
  "${enter[@]}" "$agent" /dunlin join "$token" >"$logs/join" 2>&1 || fail "joining does not work"
  "${enter[@]}" "$agent" /dunlin agent --no-mdns --listen /ip4/127.0.0.1/tcp/0 --engine http://127.0.0.1:8000 --runtime demo \
    --model in-a-pod --sidecar /shared --ready-http 127.0.0.1:8481 >"$logs/agent" 2>&1 &
  until_it_works "the executable on the shared volume" test -S "$agent/shared/agent.sock"
  "${enter[@]}" "$engine" /shared/dunlin engine -- /shared/dunlin demo-engine --http 127.0.0.1:8000 --model in-a-pod \
    >"$logs/engine" 2>&1 &
  local shim=$!
  until_it_works "a replica that is ready" ready
  until_it_works "an answer from the pod" answer in-a-pod
  echo "agent and engine in roots of their own: $(answer in-a-pod)"
  # As the kubelet ends a container.
  kill -TERM "$shim"
  wait "$shim" || fail "the shim ended with $?"
}

if [ "${1:-}" = --within ]; then
  executable=$2 scratch=$3
  logs=$scratch/logs
  mkdir "$logs"
  ip link set lo up
  alone
  pod
  exit 0
fi

executable=$(realpath "${1:?which executable?}")
needs_nothing "$executable"
if [ "$(id -u)" != 0 ] || ! unshare --mount --net --pid --fork true 2>/dev/null; then
  echo "*** SKIPPED: a root of its own needs rights that this user lacks"
  exit 0
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Mounts, network and processes end with it.
unshare --mount --net --pid --fork --kill-child "$0" --within "$executable" "$scratch"
