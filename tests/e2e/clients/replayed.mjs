// Vercel's AI SDK against what real vLLM and SGLang said. Expects the model `smollm2-135m`.
// Set OPENAI_BASE_URL and OPENAI_API_KEY.
//
// covers: /v1/chat/completions /v1/completions
import assert from "node:assert";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";

const dunlin = createOpenAICompatible({
  name: "dunlin",
  baseURL: process.env.OPENAI_BASE_URL,
  apiKey: process.env.OPENAI_API_KEY,
});
for (const model of [dunlin("smollm2-135m"), dunlin.completionModel("smollm2-135m")]) {
  const ask = { model, prompt: "Hello, who are you?", maxRetries: 0 };
  const whole = await generateText(ask);
  assert.ok(whole.text && whole.usage.outputTokens > 0, JSON.stringify(whole.usage));
  let text = "";
  for await (const piece of streamText(ask).textStream) text += piece;
  assert.ok(text.length > 2, text);
}
console.log("all ok");
