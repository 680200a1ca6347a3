"""The official Python SDK against the endpoint: what a user's program does, and what it must see.

covers: /v1/models /v1/chat/completions /v1/completions /v1/embeddings /v1/responses

Expects the models `tinykjv` and `tinykjv-embed`. Set OPENAI_BASE_URL and OPENAI_API_KEY."""

import asyncio
import json

import openai

MODEL, EMBED = "tinykjv", "tinykjv-embed"
PROMPT = [{"role": "user", "content": "In the beginning"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}}, "required": ["city"]},
    },
}

# The SDK's own retries would hide failures.
client = openai.OpenAI(max_retries=0, timeout=60)


def models():
    ids = [model.id for model in client.models.list()]
    assert MODEL in ids and EMBED in ids, ids
    assert client.models.retrieve(MODEL).id == MODEL


def unary_and_stream_agree():
    ask = dict(model=MODEL, messages=PROMPT, max_tokens=24, temperature=0, seed=1)
    whole = client.chat.completions.create(**ask)
    assert whole.choices[0].message.content and whole.usage.completion_tokens > 0, whole
    text, finish, usage = "", None, None
    for chunk in client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **ask):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    assert text == whole.choices[0].message.content, (text, whole)
    assert finish == whole.choices[0].finish_reason and usage.completion_tokens > 0, (finish, usage)


def raw_headers_name_the_replica():
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=PROMPT, max_tokens=2)
    assert raw.headers["x-dunlin-replica"] and raw.headers["x-dunlin-route"], dict(raw.headers)
    assert raw.parse().choices[0].message.content is not None


def completions():
    answer = client.completions.create(model=MODEL, prompt="And God said", max_tokens=8, temperature=0)
    assert answer.choices[0].text, answer


def tools():
    stream = client.chat.completions.create(
        model=MODEL, messages=PROMPT, tools=[TOOL], tool_choice="required", max_tokens=300, temperature=0, stream=True
    )
    name, arguments = "", ""
    for chunk in stream:
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or []:
                name += call.function.name or ""
                arguments += call.function.arguments or ""
    assert name == "weather" and json.loads(arguments)["city"] in ("Oslo", "Rome"), (name, arguments)


def embeddings():
    answer = client.embeddings.create(model=EMBED, input=["light", "darkness"])
    first, second = (item.embedding for item in answer.data)
    assert len(first) == len(second) > 8 and first != second, (len(first), len(second))


def responses():
    ask = dict(model=MODEL, input="In the beginning", max_output_tokens=8)
    whole = client.responses.create(**ask)
    assert whole.output_text and whole.usage.output_tokens > 0, whole
    kinds = [event.type for event in client.responses.create(stream=True, **ask)]
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete"), kinds
    # llama.cpp keeps none, and says so in its own words; what nobody gave is not found.
    missing = raises(openai.NotFoundError, lambda: client.responses.retrieve("resp_nobody"))
    assert missing.code == "response_not_found", missing
    raises(openai.NotFoundError, lambda: client.responses.create(previous_response_id="resp_nobody", **ask))


def raises(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def errors():
    ask = dict(model=MODEL, messages=PROMPT, max_tokens=2)
    missing = raises(openai.NotFoundError, lambda: client.chat.completions.create(**{**ask, "model": "no-such-model"}))
    assert missing.code == "model_not_found" and "no-such-model" in missing.message, missing
    stranger = client.with_options(api_key="dunlin-wrong")
    assert raises(openai.AuthenticationError, lambda: stranger.models.list()).status_code == 401
    raises(openai.BadRequestError, lambda: client.chat.completions.create(**{**ask, "messages": "not a list"}))
    raises(openai.BadRequestError, lambda: client.post("/chat/completions", body={"messages": PROMPT}, cast_to=object))


def cancel():
    stream = client.chat.completions.create(model=MODEL, messages=PROMPT, max_tokens=1500, stream=True)
    next(iter(stream))
    stream.close()


async def many_at_once():
    several = openai.AsyncOpenAI(max_retries=0, timeout=60)

    async def one(number):
        stream = await several.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": f"Verse {number}"}], max_tokens=16, stream=True
        )
        return [chunk async for chunk in stream]

    for chunks in await asyncio.gather(*(one(number) for number in range(8))):
        assert chunks[-1].choices[0].finish_reason, chunks[-1]


STEPS = (models, unary_and_stream_agree, raw_headers_name_the_replica, completions, tools, embeddings, responses, errors, cancel)
for step in STEPS:
    step()
    print("ok", step.__name__, flush=True)
asyncio.run(many_at_once())
print("all ok")
