// One whole tool loop through a running gateway: node loop.mjs SDK HOW BASE_URL KEY MODEL
// Prints {call, stop, text}: the call that came, the last stop reason, and the last text.
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const [, , sdk, how, baseURL, apiKey, model] = process.argv;
const QUESTION = 'Call get_weather {"city": "Paris"}';
const RESULT = "18 degrees and rain";
const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };

async function anthropic() {
  const client = new Anthropic({ baseURL, apiKey, maxRetries: 0 });
  const messages = [{ role: "user", content: QUESTION }];
  const tools = [{ name: "get_weather", description: "The weather", input_schema: schema }];
  const asked = { model, max_tokens: 200, messages, tools };
  const ask = () => (how === "stream" ? client.messages.stream(asked).finalMessage() : client.messages.create(asked));
  const first = await ask();
  const call = first.content.find((block) => block.type === "tool_use");
  messages.push(
    { role: "assistant", content: first.content },
    { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: RESULT }] },
  );
  const last = await ask();
  const text = last.content.map((block) => block.text ?? "").join("");
  return { call: [call.name, call.input], stops: [first.stop_reason, last.stop_reason], text };
}

async function openai() {
  const client = new OpenAI({ baseURL: `${baseURL}/v1`, apiKey, maxRetries: 0 });
  const messages = [{ role: "user", content: QUESTION }];
  const tools = [{ type: "function", function: { name: "get_weather", description: "The weather", parameters: schema } }];
  const asked = { model, messages, tools };
  const ask = () =>
    how === "stream"
      ? client.chat.completions.stream(asked).finalChatCompletion()
      : client.chat.completions.create(asked);
  const first = (await ask()).choices[0];
  const call = first.message.tool_calls[0];
  messages.push(first.message, { role: "tool", tool_call_id: call.id, content: RESULT });
  const last = (await ask()).choices[0];
  const given = JSON.parse(call.function.arguments);
  return { call: [call.function.name, given], stops: [first.finish_reason, last.finish_reason], text: last.message.content };
}

console.log(JSON.stringify(await { anthropic, openai }[sdk]()));
