"""OpenAI's Python SDK against what a real vLLM with a Whisper said. Expects the model `whisper-base`.

covers: /v1/audio/transcriptions

Set OPENAI_BASE_URL and OPENAI_API_KEY."""

import openai

client = openai.OpenAI(max_retries=0, timeout=30)
assert "whisper-base" in [model.id for model in client.models.list()]


def transcribe(name="a.wav", **more):
    return client.audio.transcriptions.create(model="whisper-base", file=(name, b"RIFF" * 1000), language="en", **more)


said = transcribe(response_format="json")
assert said.text == " (Prily" and said.usage.seconds == 8, said
# vLLM streams what it hears as chunks of its own, which the SDK hands on as they are.
pieces = [event.choices[0]["delta"]["content"] for event in transcribe(stream=True)]
assert "".join(pieces) == " (Prily", pieces


def raises(call):
    try:
        call()
    except openai.BadRequestError as error:
        return error
    raise SystemExit("no BadRequestError")


error = raises(lambda: transcribe(response_format="srt"))
assert "only support response_format" in error.body["message"] and error.body["type"] == "BadRequestError", error.body
error = raises(lambda: transcribe(name="hostname"))
assert "Invalid or corrupted audio data" in error.body["message"], error.body
print("all ok")
