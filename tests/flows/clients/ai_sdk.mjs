// The AI SDK, by its provider for OpenAI-compatible servers and by its own OpenAI provider, case by case.

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, Output, stepCountIs, streamText, tool } from "ai";

import { COLOUR, cancelFromElsewhere, PROMPT, run, seize, whileFull } from "./cases.mjs";

const compatible = (url) =>
  createOpenAICompatible({
    name: "homebase",
    baseURL: `${url}/v1`,
    apiKey: "unused",
    includeUsage: true,
    supportsStructuredOutputs: true,
  })("nano");
const responses = (url) => createOpenAI({ baseURL: `${url}/v1`, apiKey: "unused" }).responses("nano");
const ask = (model, more) => ({ model, messages: PROMPT, maxOutputTokens: 24, temperature: 0, maxRetries: 0, ...more });
const paint = tool({
  description: "Paints.",
  inputSchema: jsonSchema(COLOUR),
  execute: async ({ count }) => `painted ${count}`,
});
const asPainting = { output: Output.object({ schema: jsonSchema(COLOUR) }), maxOutputTokens: 200 };
const begin = async (model, abortSignal) => {
  const parts = streamText(ask(model, { abortSignal, maxOutputTokens: 20000, onError() {} })).fullStream;
  const reader = parts.getReader();
  for (;;) {
    const { value } = await reader.read();
    if (value.type === "text-delta") return reader;
  }
};

async function stream(model) {
  const result = streamText(ask(model));
  const seen = { text: "", kinds: [] };
  for await (const part of result.fullStream) {
    if (part.type === "text-delta") seen.text += part.text;
    seen.kinds.push(part.type);
  }
  return { ...seen, finish_reason: await result.finishReason, usage: await result.usage };
}

async function tools(model) {
  const result = await streamText(
    ask(model, {
      tools: { paint },
      toolChoice: "required",
      maxOutputTokens: 200,
      stopWhen: stepCountIs(2),
      providerOptions: { homebase: { parallel_tool_calls: false }, openai: { parallelToolCalls: false } },
    }),
  );
  const steps = await result.steps;
  return steps.map((step) => ({
    calls: step.toolCalls.map(({ toolName, input }) => ({ name: toolName, input })),
    results: step.toolResults.map((each) => each.output),
    finish_reason: step.finishReason,
  }));
}

await run({
  async chat(url) {
    const answer = await generateText(ask(compatible(url)));
    return { text: answer.text, finish_reason: answer.finishReason, usage: answer.usage };
  },

  stream: (url) => stream(compatible(url)),
  responses_stream: (url) => stream(responses(url)),
  tools: (url) => tools(compatible(url)),
  responses_tools: (url) => tools(responses(url)),
  structured: async (url) => (await generateText(ask(compatible(url), asPainting))).output,
  responses_structured: async (url) => (await generateText(ask(responses(url), asPainting))).output,

  async refusal(url) {
    const model = compatible(url);
    return whileFull(
      (signal) => begin(model, signal),
      () => seize(() => generateText(ask(model))),
    );
  },

  async failure(url) {
    const errors = [];
    const onError = ({ error }) => errors.push(error);
    const result = streamText(ask(compatible(url), { maxOutputTokens: 20000, includeRawChunks: true, onError }));
    let isCancelled = false;
    for await (const part of result.fullStream) {
      if (isCancelled || part.type !== "raw") continue;
      await cancelFromElsewhere(url, part.rawValue.id);
      isCancelled = true;
    }
    return errors.map((error) => ({ message: error.message ?? error }));
  },

  async abort(url) {
    const controller = new AbortController();
    const parts = await begin(compatible(url), controller.signal);
    controller.abort();
    const kinds = [];
    for (let part = await parts.read(); !part.done; part = await parts.read()) kinds.push(part.value.type);
    return { kinds };
  },
});
