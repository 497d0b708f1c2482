// The official TypeScript SDKs, each with a tool loop by hand, through a running gateway: node loop.mjs NAME HOW...
// The tool leaves a trace that it ran: it copies a file.
import { appendFileSync, readFileSync } from "node:fs";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const { LOOP_URL: url, LOOP_KEY: apiKey, LOOP_MODEL: model, LOOP_PROMPT: prompt } = process.env;
const [, , name, ...hows] = process.argv;
const text = { type: "string" };
const schema = { type: "object", properties: { source: text, target: text }, required: ["source", "target"] };

function copy({ source, target }) {
  const text = readFileSync(source, "utf8");
  appendFileSync(target, text);
  return text;
}

async function anthropic(how) {
  const client = new Anthropic({ baseURL: url, apiKey, maxRetries: 0 });
  const messages = [{ role: "user", content: prompt }];
  const tools = [{ name: "copy", description: "Copy a file", input_schema: schema }];
  while (true) {
    const asked = { model, max_tokens: 500, messages, tools };
    const streamed = how === "stream";
    const { content } = await (streamed ? client.messages.stream(asked).finalMessage() : client.messages.create(asked));
    const calls = content.filter((block) => block.type === "tool_use");
    if (!calls.length) return content.map((block) => block.text ?? "").join("");
    const results = calls.map(({ id, input }) => ({ type: "tool_result", tool_use_id: id, content: copy(input) }));
    messages.push({ role: "assistant", content }, { role: "user", content: results });
  }
}

async function chat(how) {
  const { completions } = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 }).chat;
  const messages = [{ role: "user", content: prompt }];
  const tools = [{ type: "function", function: { name: "copy", description: "Copy a file", parameters: schema } }];
  while (true) {
    const asked = { model, messages, tools };
    const streamed = how === "stream";
    const { choices } = await (streamed ? completions.stream(asked).finalChatCompletion() : completions.create(asked));
    const { message } = choices[0];
    if (!message.tool_calls?.length) return message.content;
    messages.push(message);
    for (const { id, function: called } of message.tool_calls)
      messages.push({ role: "tool", tool_call_id: id, content: copy(JSON.parse(called.arguments)) });
  }
}

async function responses(how) {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 }).responses;
  const input = [{ role: "user", content: prompt }];
  const tools = [{ type: "function", name: "copy", description: "Copy a file", parameters: schema, strict: false }];
  while (true) {
    const asked = { model, input, tools, store: false };
    const answer = await (how === "stream" ? client.stream(asked).finalResponse() : client.create(asked));
    const calls = answer.output.filter((item) => item.type === "function_call");
    if (!calls.length) return answer.output_text;
    input.push(...answer.output);
    for (const { call_id, arguments: given } of calls)
      input.push({ type: "function_call_output", call_id, output: copy(JSON.parse(given)) });
  }
}

for (const how of hows) console.log(await { anthropic, chat, responses }[name](how));
