// The form in which a question is written: its text, its pictures, what they cost, its settings.

import { ask } from "./api.js";
import * as camera from "./camera.js";
import { OF_PICTURES } from "./conversation.js";
import { read } from "./pictures.js";
import { element } from "./render.js";
import { described } from "./turns.js";

/** Most pictures of a question: servers take as many by themselves. */
const PICTURES_MAX = 16;

const SETTINGS = ["temperature", "tokens", "seed", "detail", "system"];
const STORED = "smelt-settings";

const at = id => document.getElementById(id);
let pictures = [];
// Who is asked: not known yet, null if it sees no pictures.
let model;
// What each picture costs, and for which model and detail that is so: {key, text}.
const costs = new WeakMap();

/** What is written, and nothing if that is nothing: {text, pictures}. */
export function question() {
  const text = at("question").value.trim();
  return text || pictures.length > 0 ? { text: text || OF_PICTURES, pictures } : null;
}

export function fill({ text, pictures: shown }) {
  at("question").value = text;
  pictures = [...shown];
  complain("");
  list();
}

export function empty() { fill({ text: "", pictures: [] }); }

export function complain(text) { at("trouble").textContent = text; }

/** The settings as texts. */
export function settings() { return Object.fromEntries(SETTINGS.map(name => [name, at(name).value])); }

/** Questions are for this model from now on. */
export function aim(name, isSeeing) {
  const now = isSeeing ? name : null;
  at("add").hidden = at("take").hidden = !isSeeing;
  if (now === model) return;
  model = now;
  if (!isSeeing && pictures.length > 0) {
    pictures = [];
    complain(`${name} reads text alone: the pictures were taken out.`);
  }
  list();
}

async function add(files) {
  if (at("chat").hidden) return;
  complain("");
  for (const file of files) {
    if (model === null) return complain("This model reads text alone.");
    if (pictures.length >= PICTURES_MAX) return complain(`A question takes ${PICTURES_MAX} pictures at most.`);
    try {
      pictures.push(await read(file));
    } catch (error) {
      complain(error.message);
    }
    list();
  }
}

function list() {
  at("pictures").hidden = pictures.length === 0;
  at("question").placeholder = pictures.length > 0 ? OF_PICTURES : "Ask something";
  at("pictures").replaceChildren(...pictures.map(pictureNode));
  if (model) pictures.filter(picture => costs.get(picture)?.key !== key()).forEach(count);
}

function pictureNode(picture) {
  const remove = element("button", { type: "button", textContent: "×", ariaLabel: `Remove ${picture.name}` });
  remove.addEventListener("click", () => {
    pictures = pictures.filter(other => other !== picture);
    list();
    at("question").focus();
  });
  return element("li", {}, element("img", { src: picture.url, alt: described(picture) }), remove,
    element("span", { textContent: costs.get(picture)?.text ?? "…" }));
}

function key() { return `${model} ${at("detail").value}`; }

// What a picture costs is what it adds to a prompt.  Nothing is asked of an engine for that.
async function count(picture) {
  const asked = key();
  const tell = text => {
    if (asked !== key()) return;
    costs.set(picture, { key: asked, text });
    list();
  };
  costs.set(picture, { key: asked, text: "…" });
  try {
    const words = { type: "text", text: OF_PICTURES };
    const shown = { type: "image_url", image_url: { url: picture.url, detail: at("detail").value } };
    tell(`${await tokens([shown, words]) - await tokens([words])} tokens`);
  } catch (error) {
    tell("not counted");
    complain(error.message);
  }
}

async function tokens(content) {
  return (await (await ask("tokenize", { model, messages: [{ role: "user", content }] })).json()).count;
}

function restore() {
  const stored = JSON.parse(localStorage.getItem(STORED) ?? "{}");
  SETTINGS.filter(name => typeof stored[name] === "string").forEach(name => { at(name).value = stored[name]; });
}

/** Lets the form be used; `send` and `stop` are what it asks for. */
export function connect({ send, stop }) {
  restore();
  at("composer").addEventListener("submit", event => { event.preventDefault(); send(); });
  at("stop").addEventListener("click", stop);
  at("add").addEventListener("click", () => at("file").click());
  at("take").addEventListener("click", () => camera.open(file => add([file]), complain));
  for (const id of ["file", "capture"]) {
    at(id).addEventListener("change", async event => {
      await add([...event.target.files]);
      event.target.value = "";
    });
  }
  at("settings").addEventListener("change", () => {
    localStorage.setItem(STORED, JSON.stringify(settings()));
    list();
  });
  listenToKeys(send, stop);
  listenToDrops();
}

function listenToKeys(send, stop) {
  // On a screen's keyboard there is no Shift and Enter; there a button sends.
  const isTouched = matchMedia("(pointer: coarse)");
  at("question").addEventListener("keydown", event => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || isTouched.matches) return;
    event.preventDefault();
    send();
  });
  addEventListener("keydown", event => {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) stop();
  });
}

function listenToDrops() {
  const over = isOver => at("composer").classList.toggle("over", isOver);
  // Words go where the cursor is.
  addEventListener("paste", event => {
    if (event.clipboardData.files.length === 0) return;
    event.preventDefault();
    add([...event.clipboardData.files]);
  });
  addEventListener("dragover", event => { event.preventDefault(); over(true); });
  addEventListener("dragleave", () => over(false));
  addEventListener("drop", event => {
    event.preventDefault();
    over(false);
    const files = [...event.dataTransfer.files];
    if (files.length > 0) add(files);
    else complain("What was dropped is no file: save the picture and drop that, or paste it.");
  });
}
