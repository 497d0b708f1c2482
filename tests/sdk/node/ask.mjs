// Runs captured answers through the official TypeScript SDKs: one JSON task a line in, one JSON outcome a line out.
// A task is {sdk, how: "stream" | "whole", status, headers, body (base64)}; no network is touched: `fetch` answers at once.
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { createInterface } from "node:readline";

const QUESTION = [{ role: "user", content: "?" }];

function answering(task) {
  const body = Buffer.from(task.body, "base64");
  // Pieces of 97 bytes, so that frames and characters are cut.
  const stream = () =>
    new ReadableStream({
      start(controller) {
        for (let at = 0; at < body.length; at += 97) controller.enqueue(body.subarray(at, at + 97));
        controller.close();
      },
    });
  return async () => new Response(stream(), { status: task.status, headers: task.headers });
}

const json = (text) => {
  try {
    return JSON.parse(text);
  } catch {
    return { unparsed: text };
  }
};

async function anthropic(task) {
  const client = new Anthropic({ apiKey: "x", maxRetries: 0, fetch: answering(task) });
  const asked = { model: "m", max_tokens: 10, messages: QUESTION };
  const message =
    task.how === "stream" ? await client.messages.stream(asked).finalMessage() : await client.messages.create(asked);
  const of = (type) => message.content.filter((block) => block.type === type);
  return {
    text: of("text").map((block) => block.text).join(""),
    reasoning: of("thinking").map((block) => block.thinking).join(""),
    calls: of("tool_use").map((block) => [block.id, block.name, block.input]),
    stop: message.stop_reason,
    usage: [message.usage.input_tokens, message.usage.output_tokens],
  };
}

async function openai(task) {
  const client = new OpenAI({ apiKey: "x", maxRetries: 0, fetch: answering(task) });
  const asked = { model: "m", messages: QUESTION };
  const completion =
    task.how === "stream"
      ? await client.chat.completions.stream({ ...asked, stream_options: { include_usage: true } }).finalChatCompletion()
      : await client.chat.completions.create(asked);
  const { message, finish_reason: stop } = completion.choices[0];
  return {
    text: message.content ?? "",
    reasoning: null, // the helper keeps only the last fragment of fields it does not know
    calls: (message.tool_calls ?? []).map((call) =>
      call.type === "custom"
        ? [call.id, call.custom.name, call.custom.input]
        : [call.id, call.function.name, json(call.function.arguments)],
    ),
    stop,
    usage: completion.usage ? [completion.usage.prompt_tokens, completion.usage.completion_tokens] : null,
  };
}

async function responses(task) {
  const client = new OpenAI({ apiKey: "x", maxRetries: 0, fetch: answering(task) });
  const asked = { model: "m", input: "?" };
  let response;
  if (task.how === "stream") {
    let last;
    const stream = client.responses.stream(asked);
    for await (const event of stream)
      if (["response.completed", "response.incomplete", "response.failed"].includes(event.type)) last = event.response;
    response = last.status === "failed" ? last : await stream.finalResponse();
  } else response = await client.responses.create(asked);
  if (response.status === "failed")
    return { error: response.error.code, status: null, message: response.error.message };
  const of = (type) => response.output.filter((item) => item.type === type);
  const made = response.output.filter((item) => ["function_call", "custom_tool_call"].includes(item.type));
  const texts = (part) => part.text;
  return {
    text: of("message").flatMap((item) => item.content).map((part) => part.text ?? "").join(""),
    reasoning: of("reasoning").flatMap((item) => [...item.summary, ...(item.content ?? [])]).map(texts).join("\n\n"),
    calls: made.map((item) => [
      item.call_id,
      item.name,
      item.type === "function_call" ? JSON.parse(item.arguments) : item.input,
    ]),
    stop: response.incomplete_details?.reason ?? response.status,
    usage: [response.usage.input_tokens, response.usage.output_tokens],
  };
}

const SDKS = { anthropic, openai, responses };

for await (const line of createInterface({ input: process.stdin })) {
  const task = JSON.parse(line);
  let outcome;
  try {
    outcome = await SDKS[task.sdk](task);
  } catch (error) {
    outcome = { error: error.constructor.name, status: error.status ?? null, message: String(error.message) };
  }
  process.stdout.write(JSON.stringify(outcome) + "\n");
}
process.exit(0);
