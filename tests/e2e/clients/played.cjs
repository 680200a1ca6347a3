// The official JavaScript SDK where an engine is played; see played.py. Set OPENAI_BASE_URL and OPENAI_API_KEY.
//
// covers: /v1/audio/speech /v1/images/generations /v1/images/edits /v1/moderations
"use strict";
const assert = require("node:assert");
const OpenAI = require("openai");

(async () => {
  const client = new OpenAI({ maxRetries: 0, timeout: 30_000 });
  const model = "artist";
  const spoken = await client.audio.speech.create({ model, voice: "alloy", input: "Hello" });
  assert.deepStrictEqual([...Buffer.from(await spoken.arrayBuffer())], [82, 73, 70, 70, 0, 255, 0, 254]);
  const drawn = await client.images.generate({ model, prompt: "a pixel" });
  assert.ok(drawn.data[0].b64_json);
  const image = await OpenAI.toFile(Buffer.from(drawn.data[0].b64_json, "base64"), "a.png", { type: "image/png" });
  const edited = await client.images.edit({ model, image, prompt: "redder" });
  assert.strictEqual(edited.data[0].b64_json, drawn.data[0].b64_json);
  const kinds = [];
  for await (const event of await client.images.edit({ model, image, prompt: "redder", stream: true })) kinds.push(event.type);
  assert.deepStrictEqual(kinds, ["image_edit.completed"]);
  assert.strictEqual((await client.moderations.create({ model, input: "x" })).results[0].flagged, false);
  console.log("all ok");
})();
