// The same as late.py with Vercel's AI SDK. Set OPENAI_BASE_URL and OPENAI_API_KEY.
import assert from "node:assert";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { streamText } from "ai";

const dunlin = createOpenAICompatible({
  name: "dunlin",
  baseURL: process.env.OPENAI_BASE_URL,
  apiKey: process.env.OPENAI_API_KEY,
});
const began = Date.now();
let text = "";
const ask = { model: dunlin("smollm2-135m"), prompt: "Hello", maxRetries: 0 };
for await (const piece of streamText(ask).textStream) text += piece;
assert.ok(text && Date.now() - began > 15_000, text);
console.log("all ok");
