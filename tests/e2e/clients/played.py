"""OpenAI's Python SDK at the endpoints of which the tests have no real engine: one is played. Expects the model `artist`.

covers: /v1/audio/speech /v1/images/generations /v1/images/edits /v1/moderations

Set OPENAI_BASE_URL and OPENAI_API_KEY."""

import base64
import io

import openai

PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
client = openai.OpenAI(max_retries=0, timeout=30)

spoken = client.audio.speech.create(model="artist", voice="alloy", input="Hello")
assert spoken.content == b"RIFF\x00\xff\x00\xfe" and spoken.response.headers["content-type"] == "audio/wav", spoken
with client.audio.speech.with_streaming_response.create(model="artist", voice="alloy", input="Hello") as stream:
    assert b"".join(stream.iter_bytes()) == spoken.content
drawn = client.images.generate(model="artist", prompt="a pixel")
assert base64.b64decode(drawn.data[0].b64_json) == PIXEL
# The SDK sends the file before or behind the model as it likes, and several files as `image[]`.
for image in (("a.png", PIXEL), [("a.png", PIXEL), ("b.png", io.BytesIO(PIXEL))]):
    edited = client.images.edit(model="artist", image=image, prompt="redder")
    assert base64.b64decode(edited.data[0].b64_json) == PIXEL
kinds = [event.type for event in client.images.generate(model="artist", prompt="a pixel", stream=True, partial_images=1)]
assert kinds == ["image_generation.partial_image", "image_generation.completed"], kinds
assert client.moderations.create(model="artist", input="kill the process").results[0].flagged is False
print("all ok")
