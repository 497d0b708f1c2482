// The tool runner of the Anthropic TypeScript SDK in its default mode, once for each model: node runner.mjs MODEL...
import Anthropic from "@anthropic-ai/sdk";

const { RUNNER_URL: baseURL, RUNNER_KEY: apiKey, RUNNER_STREAM: streams } = process.env;
const client = new Anthropic({ baseURL, apiKey, maxRetries: 0 });
const tool = {
  name: "get_weather",
  description: "The weather",
  input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  run: ({ city }) => `sun in ${city}`,
  parse: (input) => input,
};

async function run(model) {
  const messages = [{ role: "user", content: "go" }];
  const runner = client.beta.messages.toolRunner({ model, max_tokens: 500, messages, tools: [tool], stream: streams === "1" });
  const last = await runner.runUntilDone();
  return last.content.map((block) => block.text ?? "").join("");
}

for (const model of process.argv.slice(2)) {
  try {
    console.log(JSON.stringify({ model, said: await run(model) }));
  } catch (error) {
    console.log(JSON.stringify({ model, error: String(error) }));
  }
}
