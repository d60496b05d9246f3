// The ranking form: texts in the order in which they answer a question.

import { ask } from "./api.js";
import * as form from "./form.js";
import { element } from "./render.js";

/** Lets the form ask `model()`; `refused` hears of what the server would not do. */
export function connect(model, refused) {
  form.connect("ranking", async () => {
    const query = document.getElementById("query").value.trim(), documents = form.lines("documents");
    return told(documents, await (await ask("v1/rerank", { model: model(), query, documents })).json());
  }, refused);
}

function told(documents, { results }) {
  const rows = results.map(({ index, relevance_score: score }, place) => [place + 1, score.toFixed(4), documents[index]]);
  return [
    element("h2", { textContent: "Ranking" }),
    form.table(["", "Score", "Text"], rows, () => ({})),
  ];
}
