// A Vercel AI SDK tool loop over each provider: node ai-sdk.mjs PROVIDER HOW...
import { appendFileSync, readFileSync } from "node:fs";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createGoogleGenerativeAI } from "@ai-sdk/google";
import { createOpenAI } from "@ai-sdk/openai";
import * as ai from "ai";
import { z } from "zod";

const { LOOP_URL: url, LOOP_KEY: apiKey, LOOP_MODEL: model, LOOP_PROMPT: prompt } = process.env;
const [, , provider, ...hows] = process.argv;

const models = {
  anthropic: () => createAnthropic({ baseURL: `${url}/v1`, apiKey })(model),
  chat: () => createOpenAI({ baseURL: `${url}/v1`, apiKey }).chat(model),
  responses: () => createOpenAI({ baseURL: `${url}/v1`, apiKey }).responses(model),
  google: () => createGoogleGenerativeAI({ baseURL: `${url}/v1beta`, apiKey })(model),
};

const copy = ai.tool({
  description: "Copy the text of one file to the end of another, and give it back",
  inputSchema: z.object({ source: z.string(), target: z.string() }),
  execute: async ({ source, target }) => {
    const text = readFileSync(source, "utf8");
    appendFileSync(target, text);
    return text;
  },
});

const asked = { model: models[provider](), prompt, tools: { copy }, stopWhen: ai.stepCountIs(4), maxRetries: 0 };
for (const how of hows) {
  if (how === "stream") {
    const answer = ai.streamText({ ...asked, onError: ({ error }) => { throw error; } });
    await answer.consumeStream();
    console.log(await answer.text);
  } else console.log((await ai.generateText(asked)).text);
}
