#!/usr/bin/env bash
# Every endpoint that llama.cpp has, through curl. Expects the models tinykjv and tinykjv-embed.
# Set OPENAI_BASE_URL and OPENAI_API_KEY.
#
# covers: /v1/models /v1/chat/completions /v1/completions /v1/embeddings /v1/responses /v1/messages
# covers: /v1/messages/count_tokens /tokenize /detokenize /apply-template
set -euo pipefail
base=${OPENAI_BASE_URL%/v1}

ask() { # PATH BODY WANTED...: the answer must be a 200 with all that is wanted in it
  local path=$1 body=$2 answer
  shift 2
  answer=$(curl --silent --show-error --max-time 60 --fail-with-body "$base$path" -H "Authorization: Bearer $OPENAI_API_KEY" \
    -H "Content-Type: application/json" ${body:+-d "$body"}) || { echo "$path: $answer" >&2; exit 1; }
  for wanted in "$@"; do
    grep -q -- "$wanted" <<<"$answer" || { echo "$path: no $wanted in $answer" >&2; exit 1; }
  done
}

messages='"messages":[{"role":"user","content":"In the beginning"}]'
ask /v1/models "" tinykjv-embed
ask /v1/chat/completions "{\"model\":\"tinykjv\",$messages,\"max_tokens\":4}" '"content"' completion_tokens
ask /v1/chat/completions "{\"model\":\"tinykjv\",$messages,\"max_tokens\":4,\"stream\":true}" 'data: \[DONE\]'
ask /v1/completions '{"model":"tinykjv","prompt":"And God said","max_tokens":4}' '"text"'
ask /v1/embeddings '{"model":"tinykjv-embed","input":["light"]}' '"embedding"'
ask /v1/responses '{"model":"tinykjv","input":"In the beginning","max_output_tokens":4}' '"resp_' output_text
ask /v1/messages "{\"model\":\"tinykjv\",$messages,\"max_tokens\":4}" '"output_tokens"' '"role":"assistant"'
ask /v1/messages/count_tokens "{\"model\":\"tinykjv\",$messages}" '"input_tokens"'
ask /tokenize '{"model":"tinykjv","content":"In the beginning"}' '"tokens"'
ask /detokenize '{"model":"tinykjv","tokens":[40,41]}' '"content"'
ask /apply-template "{\"model\":\"tinykjv\",$messages}" '"prompt"'
echo "all ok"
