#!/usr/bin/env bash
# `llm`, the command line tool, which keeps its models in a file. Set OPENAI_BASE_URL, OPENAI_API_KEY, MODEL, LLM (the
# program) and LLM_USER_PATH (an empty folder); with ONCE it asks for one stream only.
#
# covers with llm: /v1/chat/completions /v1/completions /v1/responses
set -euo pipefail

model() { # NAME LINE...: one more model
  printf -- '- model_id: %s\n  model_name: %s\n  api_key_name: dunlin\n  api_base: "%s"\n' "$1" "$MODEL" "$OPENAI_BASE_URL"
  shift
  [ $# = 0 ] || printf '  %s\n' "$@"
}
mkdir -p "$LLM_USER_PATH"
{
  model dunlin
  model dunlin-completion "completion: true"
  model dunlin-responses "responses: true"
} >"$LLM_USER_PATH/extra-openai-models.yaml"

if [ -n "${ONCE:-}" ]; then
  said=$("$LLM" -m dunlin --key "$OPENAI_API_KEY" "In the beginning")
  [ ${#said} -gt 4 ] || { echo "nothing but: $said" >&2; exit 1; }
  echo "all ok"
  exit
fi
for name in dunlin dunlin-completion dunlin-responses; do
  for how in "" --no-stream; do
    said=$("$LLM" -m "$name" --key "$OPENAI_API_KEY" $how "In the beginning")
    [ ${#said} -gt 4 ] || { echo "$name $how: nothing but: $said" >&2; exit 1; }
  done
done
# A conversation goes on.
said=$("$LLM" -m dunlin --key "$OPENAI_API_KEY" -c "And then?")
[ ${#said} -gt 4 ] || { echo "continued: $said" >&2; exit 1; }
if "$LLM" -m dunlin --key wrong "In the beginning" 2>"$LLM_USER_PATH/error"; then
  echo "a wrong key was taken" >&2
  exit 1
fi
grep -qi "api key" "$LLM_USER_PATH/error" || { cat "$LLM_USER_PATH/error" >&2; exit 1; }
echo "all ok"
