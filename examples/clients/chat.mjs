// Streams an answer through the official OpenAI SDK: npm install openai
//
//   OPENAI_BASE_URL=http://127.0.0.1:8480/v1 OPENAI_API_KEY=sk-dunlin-... node chat.mjs MODEL QUESTION

import OpenAI from "openai";

const [model, ...question] = process.argv.slice(2);
if (question.length === 0) {
  console.error(`usage: ${process.argv[1]} MODEL QUESTION   (\`dunlin models\` lists the models)`);
  process.exit(2);
}

const client = new OpenAI(); // reads OPENAI_BASE_URL and OPENAI_API_KEY
const { data: stream, response } = await client.chat.completions
  .create({ model, messages: [{ role: "user", content: question.join(" ") }], max_tokens: 200, stream: true })
  .withResponse();
for await (const chunk of stream) {
  process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
}
console.log(`\n\nanswered by replica ${response.headers.get("x-dunlin-replica")}`);
