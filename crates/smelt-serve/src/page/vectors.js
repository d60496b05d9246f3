// The embeddings form: vectors of texts, and how near they are to each other.

import { ask } from "./api.js";
import * as form from "./form.js";
import { element } from "./render.js";

/** Most texts that are compared: their table has as many columns. */
const COMPARED_MAX = 12;

/** How many numbers of a vector are shown. */
const HEAD = 6;

/** How alike two vectors are: 1 the same way, 0 at right angles; 0 of a vector that is nothing. */
export function cosine(a, b) {
  const dot = (x, y) => x.reduce((sum, value, at) => sum + value * y[at], 0);
  const sizes = Math.sqrt(dot(a, a) * dot(b, b));
  return sizes === 0 ? 0 : dot(a, b) / sizes;
}

/** Lets the form ask `model()`; `refused` hears of what the server would not do. */
export function connect(model, refused) {
  form.connect("embedding", async () => {
    const texts = form.lines("texts");
    return told(texts, await (await ask("v1/embeddings", { model: model(), input: texts })).json());
  }, refused);
}

function told(texts, answer) {
  const vectors = answer.data.map(each => each.embedding);
  const facts = `${vectors.length} vectors of ${vectors[0].length} numbers, ${answer.usage.prompt_tokens} tokens`;
  return [
    element("h2", { textContent: "Vectors" }),
    element("p", { className: "note", textContent: facts }),
    form.table(["", "Text", "Begins with"], texts.map((text, row) => [row + 1, text, head(vectors[row])]), () => ({})),
    ...(texts.length > 1 ? likeness(vectors.slice(0, COMPARED_MAX)) : []),
  ];
}

function head(vector) {
  const numbers = vector.slice(0, HEAD).map(value => value.toFixed(4));
  return `${numbers.join(", ")}${vector.length > HEAD ? ", …" : ""}`;
}

function likeness(vectors) {
  const names = vectors.map((_, row) => row + 1);
  const rows = vectors.map((one, row) => [row + 1, ...vectors.map(other => cosine(one, other).toFixed(3))]);
  return [
    element("h2", { textContent: "Cosine similarity" }),
    form.table(["", ...names], rows, text => ({ className: "near", near: Math.max(0, Number(text)) })),
  ];
}
