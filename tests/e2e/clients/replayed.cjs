// The official JavaScript SDK against what real vLLM and SGLang said. Expects the model `smollm2-135m`.
// Set OPENAI_BASE_URL, OPENAI_API_KEY and ENGINE.
//
// covers: /v1/chat/completions /v1/completions /v1/responses /v1/embeddings /v1/models
"use strict";
const assert = require("node:assert");
const OpenAI = require("openai");

(async () => {
  const client = new OpenAI({ maxRetries: 0, timeout: 30_000 });
  const model = "smollm2-135m";
  const messages = [{ role: "user", content: "Hello, who are you?" }];
  assert.strictEqual((await client.models.retrieve(model)).id, model);
  const whole = await client.chat.completions.create({ model, messages, max_tokens: 12 });
  assert.ok(whole.choices[0].message.content && whole.usage.completion_tokens > 0);
  let text = "";
  for await (const chunk of await client.chat.completions.create({ model, messages, stream: true })) {
    assert.ok(chunk.choices.length && !chunk.usage, JSON.stringify(chunk));
    text += chunk.choices[0].delta.content ?? "";
  }
  assert.match(text, /^Hello/);
  assert.ok((await client.completions.create({ model, prompt: "The capital of France is" })).choices[0].text);
  let pieces = 0;
  for await (const _ of await client.completions.create({ model, prompt: "The", stream: true })) pieces += 1;
  assert.ok(pieces > 2);
  const response = await client.responses.create({ model, input: "Hello", max_output_tokens: 8 });
  assert.ok(response.output_text && response.usage.output_tokens > 0);
  const kinds = [];
  for await (const event of await client.responses.create({ model, input: "Hello", stream: true })) kinds.push(event.type);
  assert.match(kinds.at(-1), /^response\.(completed|incomplete)$/);
  const wanted = process.env.ENGINE === "vllm" ? /does not offer \/v1\/embeddings/ : /--is-embedding/;
  await assert.rejects(client.embeddings.create({ model, input: ["a", "b"] }), (error) => wanted.test(error.message));
  await assert.rejects(
    client.chat.completions.create({ model, messages: "hello" }),
    (error) => error.status === 400 && /validation errors/.test(error.message) && !error.message.includes("/usr/"),
  );
  console.log("all ok");
})();
