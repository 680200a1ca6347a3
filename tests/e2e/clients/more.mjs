// Vercel's AI SDK against the endpoint. Expects the models `tinykjv` and `tinykjv-embed`.
// Set OPENAI_BASE_URL and OPENAI_API_KEY.
//
// covers: /v1/chat/completions /v1/completions /v1/embeddings
import assert from "node:assert";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateText, streamText } from "ai";

const dunlin = createOpenAICompatible({
  name: "dunlin",
  baseURL: process.env.OPENAI_BASE_URL,
  apiKey: process.env.OPENAI_API_KEY,
});
const ask = {
  model: dunlin("tinykjv"),
  prompt: "In the beginning",
  maxOutputTokens: 12,
  temperature: 0,
  maxRetries: 0,
};

const whole = await generateText(ask);
assert.ok(whole.text && whole.usage.outputTokens > 0, JSON.stringify(whole.usage));
let text = "";
for await (const piece of streamText(ask).textStream) text += piece;
assert.equal(text, whole.text);
const completion = { ...ask, model: dunlin.completionModel("tinykjv") };
const completed = await generateText(completion);
let written = "";
for await (const piece of streamText(completion).textStream) written += piece;
assert.ok(written && written === completed.text, `${written} / ${completed.text}`);
const { embeddings } = await embedMany({
  model: dunlin.textEmbeddingModel("tinykjv-embed"),
  values: ["light", "darkness"],
});
assert.ok(embeddings.length === 2 && embeddings[0].length > 8);
await assert.rejects(
  generateText({ ...ask, model: dunlin("tinykj") }),
  (error) => error.statusCode === 404 && /did you mean/.test(error.message),
);
console.log("all ok");
