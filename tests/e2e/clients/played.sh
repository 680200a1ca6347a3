#!/usr/bin/env bash
# curl where an engine is played. Expects the model `artist`. Set OPENAI_BASE_URL and OPENAI_API_KEY.
#
# covers: /v1/audio/speech /v1/images/generations /v1/images/edits /v1/rerank /v2/rerank /rerank /v1/score /score
# covers: /pooling /classify /v1/moderations
set -euo pipefail
base=${OPENAI_BASE_URL%/v1}

ask() { # PATH WANTED ARG...: the answer must be a 200 with what is wanted in it
  local path=$1 wanted=$2 answer
  shift 2
  answer=$(curl --silent --show-error --max-time 30 --fail-with-body "$base$path" \
    -H "Authorization: Bearer $OPENAI_API_KEY" "$@" | tr -d '\0') || { echo "$path: $answer" >&2; exit 1; }
  grep -aq -- "$wanted" <<<"$answer" || { echo "$path: no $wanted in $answer" >&2; exit 1; }
}
json() { ask "$1" "$2" -H "Content-Type: application/json" -d "$3"; }

json /v1/audio/speech RIFF '{"model":"artist","voice":"alloy","input":"Hello"}'
json /v1/images/generations b64_json '{"model":"artist","prompt":"a pixel"}'
ask /v1/images/edits b64_json -F "image=@$0;type=image/png" -F prompt=redder -F model=artist
for path in /v1/rerank /v2/rerank /rerank; do
  json $path relevance_score '{"model":"artist","query":"light","documents":["day","night"]}'
done
for path in /v1/score /score; do
  json $path '"score"' '{"model":"artist","text_1":"light","text_2":["day","night"]}'
done
json /pooling '"data"' '{"model":"artist","input":"light"}'
json /classify '"label"' '{"model":"artist","input":"light"}'
json /v1/moderations '"flagged"' '{"model":"artist","input":"light"}'
echo "all ok"
