"""Anthropic's SDK and LangChain against the endpoint. Expects the models `tinykjv` and `tinykjv-embed`.

covers with Anthropic: /v1/messages /v1/messages/count_tokens /v1/models
covers with LangChain: /v1/chat/completions /v1/completions /v1/responses /v1/embeddings

Set OPENAI_BASE_URL and OPENAI_API_KEY."""

import os

import anthropic
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

BASE, KEY = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
PROMPT = [{"role": "user", "content": "In the beginning"}]

claude = anthropic.Anthropic(base_url=BASE.removesuffix("/v1"), api_key=KEY, max_retries=0, timeout=60)


def raises(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise SystemExit(f"no {kind.__name__}")


def messages():
    whole = claude.messages.create(model="tinykjv", max_tokens=12, extra_body={"temperature": 0}, messages=PROMPT)
    assert whole.content[0].text and whole.usage.output_tokens > 0 and whole.usage.input_tokens > 0, whole
    with claude.messages.stream(model="tinykjv", max_tokens=12, extra_body={"temperature": 0}, messages=PROMPT) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert text == whole.content[0].text, (text, whole)
    assert last.usage.output_tokens == whole.usage.output_tokens, (last, whole)
    counted = claude.messages.count_tokens(model="tinykjv", messages=PROMPT)
    assert counted.input_tokens > 2, counted
    assert {"tinykjv", "tinykjv-embed"} <= {model.id for model in claude.models.list()}
    assert claude.models.retrieve("tinykjv").id == "tinykjv"


def messages_errors():
    missing = raises(
        anthropic.NotFoundError,
        lambda: claude.messages.create(model="tinykj", max_tokens=1, messages=PROMPT),
    )
    assert missing.body["error"]["type"] == "not_found_error", missing.body
    assert "did you mean `tinykjv" in missing.body["error"]["message"], missing.body
    stranger = anthropic.Anthropic(base_url=BASE.removesuffix("/v1"), api_key="sk-dunlin-no", max_retries=0)
    wrong = raises(
        anthropic.AuthenticationError,
        lambda: stranger.messages.create(model="tinykjv", max_tokens=1, messages=PROMPT),
    )
    assert wrong.body["error"]["type"] == "authentication_error", wrong.body


def langchain():
    chat = ChatOpenAI(model="tinykjv", base_url=BASE, api_key=KEY, max_tokens=12, temperature=0, max_retries=0)
    whole = chat.invoke([HumanMessage("In the beginning")])
    assert whole.content and whole.usage_metadata["output_tokens"] > 0, whole
    pieces = [piece.content for piece in chat.stream([HumanMessage("In the beginning")])]
    assert "".join(pieces) == whole.content and len(pieces) > 2, (pieces, whole)
    words = dict(model="tinykjv", base_url=BASE, api_key=KEY, max_tokens=12, temperature=0, max_retries=0)
    text = OpenAI(**words)
    assert "".join(text.stream("And God said")) == text.invoke("And God said") != ""
    answers = ChatOpenAI(use_responses_api=True, **words)
    said, streamed = answers.invoke("In the beginning"), list(answers.stream("In the beginning"))
    assert said.text and said.usage_metadata["output_tokens"] > 0, said
    assert "".join(piece.text for piece in streamed) == said.text, (streamed, said)
    embed = OpenAIEmbeddings(model="tinykjv-embed", base_url=BASE, api_key=KEY, check_embedding_ctx_length=False, max_retries=0)
    first, second = embed.embed_documents(["light", "darkness"])
    assert len(first) == len(second) > 8 and first != second


messages()
messages_errors()
langchain()
print("all ok")
