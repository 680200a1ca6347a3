"""Speech to text by a real Whisper behind the endpoint, through the official Python SDK.

Expects the model `whisper-base` and the alias `whisper-1` for it. Set OPENAI_BASE_URL, OPENAI_API_KEY and RECORDING.

covers: /v1/audio/transcriptions /v1/audio/translations"""

import io
import os

import openai

client = openai.OpenAI(max_retries=0, timeout=120)
AUDIO = os.environ["RECORDING"]
ask = dict(language="en", temperature=0)


def transcribe(**more):
    with open(AUDIO, "rb") as audio:
        return client.audio.transcriptions.create(file=audio, **{"model": "whisper-base", **ask, **more})


def words(text):
    assert "Dashwood" in text and "leisure" in text, text


words(transcribe().text)
verbose = transcribe(response_format="verbose_json")
words(verbose.text)
assert verbose.segments and verbose.duration > 5, verbose

with open(AUDIO, "rb") as audio:
    words(client.audio.translations.create(model="whisper-base", file=audio).text)

# This engine has no other formats, and hides that below FastAPI's `detail`.
for other in ("text", "srt", "vtt"):
    try:
        transcribe(response_format=other)
        raise SystemExit(f"{other} was written")
    except openai.BadRequestError as error:
        assert error.body["message"] == f"Unsupported response_format: {other}", error.body

try:
    client.audio.transcriptions.create(model="whisper-base", file=("a.wav", io.BytesIO(b"no audio at all")))
    raise SystemExit("what is no audio was transcribed")
except openai.InternalServerError as error:
    # The engine says "Internal Server Error", in plain text.
    assert error.status_code == 500 and error.body["type"] == "server_error", error.body
    assert "did not say why" in error.body["message"], error.body

try:
    transcribe(model="whisper-bas")
    raise SystemExit("a model that does not exist transcribed")
except openai.NotFoundError as error:
    assert "did you mean `whisper-base`" in error.body["message"], error.body

print("all ok")
