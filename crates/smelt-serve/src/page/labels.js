// The form of a classifier: the labels of a text, the likeliest first.

import { ask } from "./api.js";
import * as form from "./form.js";
import { element } from "./render.js";

/** Most labels that are shown: the last of thousands are none that anybody looks for. */
const SHOWN_MAX = 50;

/** Lets the form ask `model()`; `refused` hears of what the server would not do. */
export function connect(model, refused) {
  form.connect("classifying", async () => {
    const inputs = document.getElementById("text").value.trim();
    return told(await (await ask("predict", { model: model(), inputs })).json());
  }, refused);
}

function told(labels) {
  const scores = labels.map(({ score }) => score);
  // Scores of a regression are of any size.
  const ends = { min: Math.min(0, ...scores), max: Math.max(1, ...scores) };
  const row = ({ label, score }) => element("li", {}, element("span", { textContent: label }),
    element("meter", { ...ends, value: score, ariaLabel: label }), element("span", { textContent: score.toFixed(4) }));
  const rest = labels.length - SHOWN_MAX;
  return [
    element("h2", { textContent: "Labels" }),
    element("ol", { className: "bars" }, ...labels.slice(0, SHOWN_MAX).map(row)),
    ...(rest > 0 ? [element("p", { className: "note", textContent: `${rest} more, with lower scores` })] : []),
  ];
}
