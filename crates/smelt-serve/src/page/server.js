// What the server is: its models, how it is, what it counts.  Looked at gently, and only while somebody looks on.

import { ask } from "./api.js";
import { element } from "./render.js";
import { parse, summary } from "./metrics.js";

/** How often, in milliseconds. */
const PERIOD_MS = 5000;

const at = id => document.getElementById(id);
// What each model can do, by name and time of building: it is asked once.
const abilities = new Map();
let models = [], counted = null;

/** The name of the chosen model. */
export function model() { return at("model").value; }

/** Looks now, and from then on; `chosen` hears of {name, classifies, embeds, ranks, sees} of the model whenever that may differ. */
export function connect(chosen, refused) {
  let isRefused = false;
  const look = async () => {
    try {
      await lookOnce(chosen);
      isRefused = false;
    } catch (error) {
      tell([error.message]);
      // Who closed the door is not asked again every few seconds.
      if (!isRefused) refused(error);
      isRefused = true;
    }
  };
  at("model").addEventListener("change", look);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
  setInterval(() => { if (!document.hidden) look(); }, PERIOD_MS);
  look();
  return look;
}

async function lookOnce(chosen) {
  models = (await (await ask("v1/models")).json()).data;
  offer(models.map(model => model.id));
  const found = models.find(found => found.id === model());
  const health = await (await fetch("health")).json();
  if (health.status !== "ok") tell([health.progress ?? health.status]);
  else await count();
  if (found && health.status === "ok") chosen({ name: found.id, ...await able(found) });
}

async function count() {
  const now = { at: performance.now(), sums: parse(await (await ask("metrics")).text()) };
  tell(summary(now.sums, counted?.sums, now.at - counted?.at));
  counted = now;
}

function tell(words) { at("meter").replaceChildren(...words.map(word => element("span", { textContent: word }))); }

function offer(names) {
  const known = Array.from(at("model").options, option => option.value);
  if (names.join("\n") === known.join("\n")) return;
  const before = model();
  at("model").replaceChildren(...names.map(name => new Option(name, name, false, name === before)));
}

// A model that is not in memory is loaded by this; it was chosen, so it is about to be asked.
async function able({ id, created }) {
  const key = `${id} ${created}`;
  if (!abilities.has(key)) {
    const { capabilities } = await (await ask("api/show", { model: id })).json();
    const can = word => capabilities.includes(word);
    abilities.set(key, { classifies: can("classify"), embeds: can("embedding"), ranks: can("rerank"), sees: can("vision") });
  }
  return abilities.get(key);
}
