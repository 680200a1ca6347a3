// Speech to text through the official JavaScript SDK, which sends the file before the model.
// Set OPENAI_BASE_URL, OPENAI_API_KEY and RECORDING.
//
// covers: /v1/audio/transcriptions /v1/audio/translations
const fs = require("node:fs");
const assert = require("node:assert");
const { OpenAI } = require("openai");

(async () => {
  const client = new OpenAI({ maxRetries: 0, timeout: 120000 });
  const file = () => fs.createReadStream(process.env.RECORDING);
  const said = await client.audio.transcriptions.create({ file: file(), model: "whisper-base", language: "en" });
  assert.match(said.text, /Dashwood/);
  const translated = await client.audio.translations.create({ file: file(), model: "whisper-base" });
  assert.match(translated.text, /Dashwood/);
  const other = client.audio.transcriptions.create(
    { file: file(), model: "whisper-base" },
    { headers: { "x-dunlin-model": "whisper-1" } },
  );
  await assert.rejects(other, (error) => error.status === 400 && /x-dunlin-model/.test(error.message));
  console.log("all ok");
})();
