// The official OpenAI package for Node, case by case.

import OpenAI from "openai";

import { cancelFromElsewhere, COLOUR, PROMPT, run, seize, whileFull } from "./cases.mjs";

const TOOLS = [{ type: "function", function: { name: "paint", description: "Paints.", parameters: COLOUR } }];
const connect = (url) => new OpenAI({ baseURL: `${url}/v1`, apiKey: "unused" });
const ask = (more) => ({ model: "nano", messages: PROMPT, max_tokens: 24, temperature: 0, ...more });
const begin = async (client, signal) => {
  const stream = await client.chat.completions.create(ask({ stream: true, max_tokens: 20000 }), { signal });
  const chunks = stream[Symbol.asyncIterator]();
  for (;;) if ((await chunks.next()).value.choices[0].delta.content) return chunks;
};

await run({
  async chat(url) {
    const answer = await connect(url).chat.completions.create(ask());
    const { message, finish_reason } = answer.choices[0];
    return { text: message.content, finish_reason, usage: answer.usage };
  },

  async stream(url) {
    const stream = await connect(url).chat.completions.create(
      ask({ stream: true, stream_options: { include_usage: true } }),
    );
    const seen = { text: "", reasons: [], usages: [] };
    for await (const chunk of stream) {
      for (const choice of chunk.choices) {
        seen.text += choice.delta.content ?? "";
        if (choice.finish_reason) seen.reasons.push(choice.finish_reason);
      }
      if (chunk.usage) seen.usages.push(chunk.usage);
    }
    return seen;
  },

  async tools(url) {
    const client = connect(url);
    const asked = ask({ tools: TOOLS, tool_choice: "required", parallel_tool_calls: false, max_tokens: 200 });
    const stream = client.chat.completions.stream(asked);
    const { message, finish_reason } = (await stream.finalChatCompletion()).choices[0];
    const [call] = message.tool_calls;
    const result = { role: "tool", tool_call_id: call.id, content: "painted" };
    const next = await client.chat.completions.create(ask({ tools: TOOLS, messages: [...PROMPT, message, result] }));
    const calls = message.tool_calls.map(({ function: { name, arguments: text } }) => ({ name, input: JSON.parse(text) }));
    return { finish_reason, calls, next: next.choices[0].message.content };
  },

  async structured(url) {
    const response_format = { type: "json_schema", json_schema: { name: "paint", schema: COLOUR, strict: true } };
    const answer = await connect(url).chat.completions.parse(ask({ response_format, max_tokens: 200 }));
    return answer.choices[0].message.parsed;
  },

  async responses(url) {
    const client = connect(url);
    const format = { type: "json_schema", name: "paint", schema: COLOUR, strict: true };
    const asked = { model: "nano", input: PROMPT, temperature: 0, max_output_tokens: 200, text: { format } };
    const events = [];
    const stream = client.responses.stream(asked);
    for await (const event of stream) events.push(event.type);
    const first = await stream.finalResponse();
    const second = await client.responses.create({
      model: "nano", input: "Go on.", previous_response_id: first.id, max_output_tokens: 8,
    });
    return { events, parsed: JSON.parse(first.output_text), status: first.status, next: second.output_text };
  },

  async refusal(url) {
    const client = connect(url);
    return whileFull(
      (signal) => begin(client, signal),
      () => seize(() => client.chat.completions.create(ask())),
    );
  },

  async failure(url) {
    const stream = await connect(url).chat.completions.create(ask({ stream: true, max_tokens: 20000 }));
    return seize(async () => {
      let isCancelled = false;
      for await (const chunk of stream) {
        if (isCancelled || !chunk.choices[0]?.delta.content) continue;
        await cancelFromElsewhere(url, chunk.id);
        isCancelled = true;
      }
    });
  },

  async missing(url) {
    return seize(() => connect(url).chat.completions.create(ask({ model: "gpt-none" })));
  },

  async abort(url) {
    const controller = new AbortController();
    const chunks = await begin(connect(url), controller.signal);
    controller.abort();
    return { done: (await chunks.next().catch(() => ({ done: true }))).done };
  },
});
