// Vercel's AI SDK where an engine is played. Expects the model `artist`. Set OPENAI_BASE_URL and OPENAI_API_KEY.
//
// covers: /v1/images/generations
import assert from "node:assert";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateImage } from "ai";

const dunlin = createOpenAICompatible({
  name: "dunlin",
  baseURL: process.env.OPENAI_BASE_URL,
  apiKey: process.env.OPENAI_API_KEY,
});
const { image } = await generateImage({ model: dunlin.imageModel("artist"), prompt: "a pixel", maxRetries: 0 });
assert.ok(image.uint8Array.length > 60 && image.mediaType === "image/png", image.mediaType);
console.log("all ok");
