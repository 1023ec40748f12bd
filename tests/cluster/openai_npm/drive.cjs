// Drives a server with OpenAI's own client and prints what came of it as JSON:
//     node drive.cjs DIRECTORY_WITH_NODE_MODULES BASE_URL MODEL
"use strict";

const [directory, baseURL, model] = process.argv.slice(2);
const OpenAI = require(require.resolve("openai", { paths: [directory] }));
const client = new OpenAI({ apiKey: "none", baseURL, maxRetries: 0 });

const messages = [{ role: "user", content: "Tell me a story." }];
const options = { model, max_tokens: 24, seed: 11, temperature: 0.8 };

async function refusal(call) {
  try {
    await call();
  } catch (error) {
    const { status, code, param, requestID } = error;
    return { name: error.constructor.name, status, code, param, requestID };
  }
  throw new Error("it was not refused");
}

async function main() {
  const listed = [];
  for await (const served of client.models.list()) listed.push(served.id);

  const chat = await client.chat.completions.create({ ...options, messages });
  const chunks = [];
  const streamed = await client.chat.completions.create({
    ...options,
    messages,
    stream: true,
    stream_options: { include_usage: true },
  });
  for await (const chunk of streamed) chunks.push(chunk);
  const helper = client.chat.completions.stream({ ...options, messages });
  const gathered = await helper.finalMessage();

  const prompt = ["Once upon a time", "The fox"];
  const completion = await client.completions.create({ ...options, prompt });
  const texts = ["", ""];
  const pieces = await client.completions.create({ ...options, prompt, stream: true });
  for await (const { choices } of pieces) for (const c of choices) texts[c.index] += c.text;

  const tools = [{ type: "function", function: { name: "f", parameters: {} } }];
  const refused = {
    tools: await refusal(() => client.chat.completions.create({ ...options, messages, tools })),
    model: await refusal(() =>
      client.chat.completions.create({ ...options, messages, model: "nope" })),
    late: await refusal(async () => {
      const long = { ...options, messages, max_tokens: 1900, ignore_eos: true, timeout_s: 0.4 };
      const stream = await client.chat.completions.create(
        { ...long, stream: true },
        { headers: { "x-request-id": "late-one" } },
      );
      for await (const _ of stream);
    }),
  };
  return { listed, chat, chunks, gathered, completion, texts, refused };
}

main().then(
  (result) => console.log(JSON.stringify(result)),
  (error) => {
    console.error(error);
    process.exitCode = 1;
  },
);
