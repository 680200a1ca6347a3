#!/usr/bin/env bash
# Shows the events of a streamed answer as they come, through curl; Python only writes the request.
#
#   OPENAI_BASE_URL=http://127.0.0.1:8480/v1 OPENAI_API_KEY=sk-dunlin-... chat.sh MODEL QUESTION
set -euo pipefail
if [ $# -lt 2 ]; then
  echo "usage: $0 MODEL QUESTION   (\`dunlin models\` lists the models)" >&2
  exit 2
fi
model=$1
shift
body=$(python3 -c 'import json, sys; print(json.dumps({"model": sys.argv[1], "stream": True, "max_tokens": 200,
  "messages": [{"role": "user", "content": sys.argv[2]}]}))' "$model" "$*")
# %header{...} needs curl 7.83 or newer.
curl --silent --show-error --no-buffer --fail-with-body "$OPENAI_BASE_URL/chat/completions" \
  -H "Authorization: Bearer $OPENAI_API_KEY" -H "Content-Type: application/json" -d "$body" \
  --write-out '\nanswered by replica %header{x-dunlin-replica}\n'
