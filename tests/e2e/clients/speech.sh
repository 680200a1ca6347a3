#!/usr/bin/env bash
# Speech to text through curl, which sends the fields of a form in the order in which they are named. Expects the model
# `whisper-base`. Set OPENAI_BASE_URL, OPENAI_API_KEY and RECORDING.
#
# covers: /v1/audio/transcriptions /v1/audio/translations
set -euo pipefail

ask() { # PATH FIELD...
  local path=$1 field fields=()
  shift
  for field in "$@"; do fields+=(-F "$field"); done
  curl --silent --show-error --fail-with-body --max-time 100 -H "Authorization: Bearer $OPENAI_API_KEY" \
    "${fields[@]}" "$OPENAI_BASE_URL/$path"
}
audio="file=@$RECORDING"
for said in "$(ask audio/transcriptions "$audio" model=whisper-base language=en)" \
  "$(ask audio/transcriptions model=whisper-base language=en "$audio")" \
  "$(ask audio/translations "$audio" model=whisper-base)"; do
  grep -q Dashwood <<<"$said" || { echo "$said" >&2; exit 1; }
done
echo "all ok"
