#!/usr/bin/env bash
# Streams an answer with nothing but curl.
#
#   OPENAI_BASE_URL=http://127.0.0.1:8480/v1 OPENAI_API_KEY=sk-dunlin-... chat.sh MODEL "QUESTION"
set -euo pipefail
body=$(python3 -c 'import json, sys; print(json.dumps({"model": sys.argv[1], "stream": True, "max_tokens": 200,
  "messages": [{"role": "user", "content": sys.argv[2]}]}))' "$1" "$2")
curl --silent --show-error --no-buffer --fail-with-body "$OPENAI_BASE_URL/chat/completions" \
  -H "Authorization: Bearer $OPENAI_API_KEY" -H "Content-Type: application/json" -d "$body"
