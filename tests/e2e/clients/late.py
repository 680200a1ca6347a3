"""Streams whose first word is long in coming: the endpoint keeps them alive with comments, which no parser may mind.

Expects the model `smollm2-135m`. Set OPENAI_BASE_URL and OPENAI_API_KEY."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import anthropic
import openai
from langchain_openai import ChatOpenAI

BASE, KEY, MODEL = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], "smollm2-135m"
PROMPT = [{"role": "user", "content": "Hello, who are you?"}]
client = openai.OpenAI(max_retries=0, timeout=60)
claude = anthropic.Anthropic(base_url=BASE.removesuffix("/v1"), api_key=KEY, max_retries=0, timeout=60)


def chat():
    chunks = client.chat.completions.create(model=MODEL, messages=PROMPT, stream=True)
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def completion():
    return "".join(chunk.choices[0].text for chunk in client.completions.create(model=MODEL, prompt="The", stream=True))


def response():
    events = list(client.responses.create(model=MODEL, input="Hello", stream=True))
    assert events[0].type == "response.created", events[0]
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def message():
    with claude.messages.stream(model=MODEL, max_tokens=6, messages=PROMPT) as stream:
        return "".join(stream.text_stream)


def langchain():
    model = ChatOpenAI(model=MODEL, base_url=BASE, api_key=KEY, max_retries=0, timeout=60)
    return "".join(piece.content for piece in model.stream("Hello"))


def timed(step):
    began = time.monotonic()
    text = step()
    return step.__name__, text, time.monotonic() - began


steps = (chat, completion, response, message, langchain)
with ThreadPoolExecutor(len(steps)) as pool:
    for name, text, took in pool.map(timed, steps):
        assert text and took > 15, (name, text, took)
        print("ok", name, flush=True)
print("all ok")
