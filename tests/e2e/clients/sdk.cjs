// The official JavaScript SDK against the endpoint. Expects the models `tinykjv` and `tinykjv-embed`; set
// OPENAI_BASE_URL and OPENAI_API_KEY.
//
// covers: /v1/models /v1/chat/completions /v1/completions /v1/embeddings /v1/responses
"use strict";
const assert = require("node:assert");
const OpenAI = require("openai");

const model = "tinykjv";
const messages = [{ role: "user", content: "In the beginning" }];
// The SDK's own retries would hide failures.
const client = new OpenAI({ maxRetries: 0, timeout: 60_000 });

async function streamAndUnaryAgree() {
  const ask = { model, messages, max_tokens: 24, temperature: 0, seed: 1 };
  const whole = await client.chat.completions.create(ask);
  let text = "";
  let finish = null;
  for await (const chunk of await client.chat.completions.create({ ...ask, stream: true })) {
    text += chunk.choices[0]?.delta?.content ?? "";
    finish = chunk.choices[0]?.finish_reason ?? finish;
  }
  assert.ok(text.length > 0);
  assert.strictEqual(text, whole.choices[0].message.content);
  assert.strictEqual(finish, whole.choices[0].finish_reason);
}

async function tools() {
  const parameters = { type: "object", properties: { city: { type: "string", enum: ["Oslo", "Rome"] } }, required: ["city"] };
  const answer = await client.chat.completions.create({
    model,
    messages,
    tools: [{ type: "function", function: { name: "weather", parameters } }],
    tool_choice: "required",
    max_tokens: 300,
    temperature: 0,
  });
  const call = answer.choices[0].message.tool_calls[0].function;
  assert.strictEqual(call.name, "weather");
  assert.ok(["Oslo", "Rome"].includes(JSON.parse(call.arguments).city), call.arguments);
}

async function embeddings() {
  const answer = await client.embeddings.create({ model: "tinykjv-embed", input: ["light", "darkness"] });
  assert.strictEqual(answer.data.length, 2);
  assert.ok(answer.data[0].embedding.length > 8);
}

async function completions() {
  const answer = await client.completions.create({ model, prompt: "And God said", max_tokens: 8 });
  assert.ok(answer.choices[0].text);
}

async function responses() {
  const ask = { model, input: "In the beginning", max_output_tokens: 8 };
  const whole = await client.responses.create(ask);
  assert.ok(whole.output_text && whole.usage.output_tokens > 0);
  const kinds = [];
  for await (const event of await client.responses.create({ ...ask, stream: true })) kinds.push(event.type);
  assert.match(kinds.at(-1), /^response\.(completed|incomplete)$/);
}

async function errors() {
  const missing = client.chat.completions.create({ model: "no-such-model", messages });
  await assert.rejects(missing, (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found");
  const stranger = new OpenAI({ apiKey: "dunlin-wrong", maxRetries: 0 });
  await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
}

async function cancel() {
  const stream = await client.chat.completions.create({ model, messages, max_tokens: 1500, stream: true });
  for await (const _ of stream) break;
  const controller = new AbortController();
  const pending = client.chat.completions.create({ model, messages, max_tokens: 1500, ignore_eos: true }, { signal: controller.signal });
  // The small model needs some 150 ms for so many tokens on a fast machine.
  setTimeout(() => controller.abort(), 20);
  await assert.rejects(pending, OpenAI.APIUserAbortError);
}

(async () => {
  const ids = [];
  for await (const entry of client.models.list()) ids.push(entry.id);
  assert.ok(ids.includes(model), ids.join());
  for (const step of [streamAndUnaryAgree, completions, tools, embeddings, responses, errors, cancel]) {
    await step();
    console.log("ok", step.name);
  }
  console.log("all ok");
})();
