// Runs one case of a client by its name and writes what the client saw as one line of JSON.
//
// node openai.mjs CASE URL

export const PROMPT = [{ role: "user", content: "Write a Python class with many methods." }];

export const COLOUR = {
  type: "object",
  properties: { colour: { type: "string", enum: ["red", "green"] }, count: { type: "integer", minimum: 1, maximum: 9 } },
  required: ["colour", "count"],
  additionalProperties: false,
};

export async function run(cases) {
  const [name, url] = process.argv.slice(2);
  console.log(JSON.stringify(await cases[name](url)));
}

// Begins as many streams as the server has places, and runs `act` while they are open.
export async function whileFull(begin, act) {
  const held = [new AbortController(), new AbortController()];
  try {
    for (const each of held) await begin(each.signal);
    return await act();
  } finally {
    for (const each of held) each.abort();
  }
}

// What `act` throws, in the fields that a client's user looks at.
export async function seize(act) {
  try {
    await act();
    return null;
  } catch (error) {
    return {
      name: error.name,
      kind: error.constructor.name,
      status: error.status ?? error.statusCode ?? null,
      code: error.code ?? null,
      message: error.message,
    };
  }
}

// Ends a request by its id, from another connection, as an operator would.
export async function cancelFromElsewhere(url, id) {
  const answer = await fetch(`${url}/v1/requests/${id}/cancel`, { method: "POST" });
  if (!answer.ok) throw new Error(`cancelling ${id}: ${answer.status} ${await answer.text()}`);
}
