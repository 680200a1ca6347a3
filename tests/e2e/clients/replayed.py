"""OpenAI's and Anthropic's SDKs against what real vLLM and SGLang said. Expects the model `smollm2-135m`.

covers: /v1/chat/completions /v1/completions /v1/responses /v1/embeddings /v1/models
covers with Anthropic: /v1/messages /v1/models
covers with LangChain: /v1/chat/completions /v1/completions /v1/responses

Set OPENAI_BASE_URL, OPENAI_API_KEY and ENGINE."""

import os

import anthropic
import openai
from langchain_openai import ChatOpenAI, OpenAI

ENGINE, MODEL = os.environ["ENGINE"], "smollm2-135m"
BASE = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
PROMPT = [{"role": "user", "content": "Hello, who are you?"}]
client = openai.OpenAI(max_retries=0, timeout=30)
claude = anthropic.Anthropic(base_url=BASE, api_key=os.environ["OPENAI_API_KEY"], max_retries=0, timeout=30)


def raises(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise SystemExit(f"no {kind.__name__}")


assert MODEL in [model.id for model in client.models.list()]
whole = client.chat.completions.create(model=MODEL, messages=PROMPT, max_tokens=12)
assert whole.choices[0].message.content and whole.usage.completion_tokens > 0, whole

chunks = list(client.chat.completions.create(model=MODEL, messages=PROMPT, max_tokens=12, stream=True))
text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
assert text.startswith("Hello"), text
# The engine was asked for the usage, and the event that this adds is taken out.
assert all(chunk.usage is None and chunk.choices for chunk in chunks), chunks[-2:]
options = {"include_usage": True}
chunks = list(client.chat.completions.create(model=MODEL, messages=PROMPT, stream=True, stream_options=options))
assert chunks[-1].usage.completion_tokens == 12 and chunks[-1].usage.prompt_tokens == 36, chunks[-1]

assert client.completions.create(model=MODEL, prompt="The capital of France is").choices[0].text
pieces = [chunk.choices[0].text for chunk in client.completions.create(model=MODEL, prompt="The", stream=True)]
assert len(pieces) > 2, pieces

response = client.responses.create(model=MODEL, input="Hello", max_output_tokens=8)
assert response.output_text and response.usage.output_tokens > 0, response
kinds = [event.type for event in client.responses.create(model=MODEL, input="Hello", stream=True)]
assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete"), kinds

message = claude.messages.create(model=MODEL, max_tokens=6, messages=PROMPT)
assert message.content[0].text and message.usage.output_tokens > 0, message
with claude.messages.stream(model=MODEL, max_tokens=6, messages=PROMPT) as stream:
    assert "".join(stream.text_stream)

assert MODEL in [model.id for model in claude.models.list()]

chain = dict(model=MODEL, base_url=BASE + "/v1", api_key=os.environ["OPENAI_API_KEY"], max_retries=0, timeout=30)
for model in (ChatOpenAI(**chain), ChatOpenAI(use_responses_api=True, **chain), OpenAI(**chain)):
    words = [str(getattr(piece, "content", piece)) for piece in model.stream("Hello")]
    assert model.invoke("Hello") and "".join(words), words

# Each engine has its own way of saying no; clients see one.
error = raises(openai.BadRequestError, lambda: client.chat.completions.create(model=MODEL, messages="hello"))
assert "validation errors" in error.body["message"] and "/usr/" not in error.body["message"], error.body
error = raises(openai.BadRequestError, lambda: client.chat.completions.create(model=MODEL, messages=PROMPT, max_tokens=9999))
assert "context length" in error.body["message"], error.body
kind = openai.NotFoundError if ENGINE == "vllm" else openai.BadRequestError
error = raises(kind, lambda: client.embeddings.create(model=MODEL, input=["a", "b"]))
wanted = "does not offer /v1/embeddings" if ENGINE == "vllm" else "--is-embedding"
assert wanted in error.body["message"], error.body
print("all ok")
