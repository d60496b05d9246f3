// Holds a running server against the clients of JavaScript.
//
//   node check.mjs http://127.0.0.1:8000 PICTURES
//
// PICTURES is a directory with shapes-1.png, which the demo's model knows.  The server has the demo, whose answers are
// known, and a chat template that knows tools.  Every check is a function; the first that fails ends the run with its
// name and why.

import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { Ollama } from "ollama";
import OpenAI from "openai";
import { z } from "zod";

const [base, pictures] = process.argv.slice(2);
const [MODEL, QUESTION, ANSWER] = ["shapes-vl", "What is left of the red circle?", "a blue circle"];
const picture = fs.readFileSync(path.join(pictures, "shapes-1.png"));
const url = "data:image/png;base64," + picture.toString("base64");
const none = { baseURL: base + "/v1", apiKey: "none" };
const client = new OpenAI({ ...none, maxRetries: 0, timeout: 60_000 });
const provider = createOpenAI(none);
const compatible = createOpenAICompatible({ name: "smelt", ...none, supportsStructuredOutputs: true });
// Responses is what the AI SDK asks for where nothing is said.
const models = { responses: provider(MODEL), chat: provider.chat(MODEL), compatible: compatible(MODEL) };

const shown = (text) => [{ role: "user", content: [{ type: "image_url", image_url: { url } }, { type: "text", text }] }];
const seen = (text) => [{ role: "user", content: [{ type: "image", image: picture }, { type: "text", text }] }];
const chat = (fields) => client.chat.completions.create({ model: MODEL, temperature: 0, ...fields });

const colour = { type: "object", properties: { colour: { enum: ["red", "blue"] } }, required: ["colour"], additionalProperties: false };
const find = { type: "function", function: { name: "find", description: "Finds", parameters: colour } };

async function openaiIsAnswered() {
  const whole = await chat({ messages: shown(QUESTION) });
  assert.equal(whole.choices[0].message.content, ANSWER);
  let text = "";
  for await (const part of await chat({ messages: shown(QUESTION), stream: true })) {
    text += part.choices[0]?.delta.content ?? "";
  }
  assert.equal(text, ANSWER);
}

async function openaiCallsTools() {
  const asked = { messages: shown("Find it."), tools: [find], tool_choice: "required", parallel_tool_calls: false, max_tokens: 200 };
  const [call] = (await chat(asked)).choices[0].message.tool_calls;
  assert.equal(call.function.name, "find");
  assert(["red", "blue"].includes(JSON.parse(call.function.arguments).colour));
  // The client puts the parts together itself.
  const streamed = await client.chat.completions.stream({ model: MODEL, temperature: 0, ...asked }).finalMessage();
  assert.deepEqual(streamed.tool_calls[0].function.arguments, call.function.arguments);
}

async function openaiAsksForResponses() {
  const content = [{ type: "input_image", detail: "auto", image_url: url }, { type: "input_text", text: QUESTION }];
  const asked = { model: MODEL, temperature: 0, input: [{ role: "user", content }] };
  assert.equal((await client.responses.create(asked)).output_text, ANSWER);
  const last = await client.responses.stream(asked).finalResponse();
  assert.deepEqual([last.status, last.output_text], ["completed", ANSWER]);
}

async function openaiIsRefused() {
  await assert.rejects(chat({ model: "another", messages: shown("a") }), OpenAI.NotFoundError);
  const long = chat({ messages: [{ role: "user", content: "word ".repeat(5000) }] });
  await assert.rejects(long, (error) => error instanceof OpenAI.BadRequestError && error.code === "context_length_exceeded");
}

async function aiIsAnswered() {
  for (const [name, model] of Object.entries(models)) {
    const asked = { model, temperature: 0, maxRetries: 0, messages: seen(QUESTION) };
    const whole = await generateText(asked);
    assert.deepEqual([whole.text, whole.finishReason], [ANSWER, "stop"], name);
    assert(whole.usage.outputTokens > 0, name);
    // A stream ends silently where it fails, and tells only this function why.
    let failed;
    const stream = streamText({ ...asked, onError: ({ error }) => (failed = error) });
    let text = "";
    for await (const part of stream.textStream) text += part;
    assert.equal(failed, undefined, name);
    assert.equal(text, ANSWER, name);
  }
}

async function aiCallsTools() {
  for (const [name, model] of Object.entries(models)) {
    const asked = [];
    const tools = {
      find: tool({
        description: "Finds",
        inputSchema: z.strictObject({ colour: z.enum(["red", "blue"]) }),
        execute: ({ colour }) => (asked.push(colour), "left"),
      }),
    };
    // What the tool says is read again in a second step.
    const steps = { stopWhen: stepCountIs(2), prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber ? "none" : "required" }) };
    const whole = await generateText({ model, tools, ...steps, temperature: 0, maxRetries: 0, messages: seen("Find it.") });
    assert(asked.length > 0 && asked.every((one) => ["red", "blue"].includes(one)), name);
    assert.deepEqual([whole.steps.length, whole.finishReason], [2, "stop"], name);
  }
}

async function aiStructures() {
  const schema = z.strictObject({ circles: z.number().int().min(0).max(9) });
  for (const [name, model] of Object.entries(models)) {
    const asked = { model, schema, temperature: 0, maxRetries: 0, messages: seen("How many circles are there?") };
    // It holds the answer to the schema itself.
    assert(Number.isInteger((await generateObject(asked)).object.circles), name);
  }
}

async function aiIsRefused() {
  for (const of of [provider, provider.chat, compatible]) {
    const refused = generateText({ model: of("another"), prompt: "a", maxRetries: 0 });
    await assert.rejects(refused, (error) => APICallError.isInstance(error) && error.statusCode === 404);
  }
}

async function ollamaIsAnswered() {
  const llama = new Ollama({ host: base });
  const messages = [{ role: "user", content: QUESTION, images: [picture.toString("base64")] }];
  const asked = { model: MODEL, messages, options: { temperature: 0 } };
  assert.equal((await llama.chat(asked)).message.content, ANSWER);
  let text = "";
  for await (const part of await llama.chat({ ...asked, stream: true })) text += part.message.content;
  assert.equal(text, ANSWER);
  const refused = llama.chat({ ...asked, model: "another" });
  await assert.rejects(refused, (error) => error.name === "ResponseError" && error.status_code === 404);
}

const CHECKS = [
  openaiIsAnswered, openaiCallsTools, openaiAsksForResponses, openaiIsRefused,
  aiIsAnswered, aiCallsTools, aiStructures, aiIsRefused, ollamaIsAnswered,
];

for (const check of CHECKS) {
  const begun = performance.now();
  const name = check.name.replace(/[A-Z]/g, (letter) => " " + letter.toLowerCase());
  try {
    await check();
  } catch (error) {
    console.error(`${name}: ${error}`);
    throw error;
  }
  console.log(name.padEnd(36), ((performance.now() - begun) / 1000).toFixed(1).padStart(5), "s");
}
