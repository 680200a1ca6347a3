// The same as late.py with the official JavaScript SDK. Set OPENAI_BASE_URL and OPENAI_API_KEY.
"use strict";
const assert = require("node:assert");
const OpenAI = require("openai");

(async () => {
  const client = new OpenAI({ maxRetries: 0, timeout: 60_000 });
  const model = "smollm2-135m";
  const began = Date.now();
  const chat = async () => {
    let text = "";
    const messages = [{ role: "user", content: "Hello" }];
    for await (const chunk of await client.chat.completions.create({ model, messages, stream: true }))
      text += chunk.choices[0]?.delta?.content ?? "";
    assert.ok(text);
  };
  const response = async () => {
    const kinds = [];
    for await (const event of await client.responses.create({ model, input: "Hello", stream: true })) kinds.push(event.type);
    assert.ok(kinds[0] === "response.created" && kinds.includes("response.output_text.delta"), kinds.join());
  };
  await Promise.all([chat(), response()]);
  assert.ok(Date.now() - began > 15_000);
  console.log("all ok");
})();
