// Puts the page together.  Owns the conversation and the answer that is under way; the other files own their places.

import { Refusal, ask, useKey } from "./api.js";
import * as composer from "./composer.js";
import { facts, fresh, request, sentences } from "./conversation.js";
import { events } from "./events.js";
import * as history from "./history.js";
import * as labels from "./labels.js";
import * as ranks from "./ranks.js";
import * as server from "./server.js";
import * as shelf from "./shelf.js";
import * as turns from "./turns.js";
import * as vectors from "./vectors.js";

const at = id => document.getElementById(id);
let talk = begin();
// The answer under way: its AbortController.
let asking = null;
let isEditing = false;
// What keeps conversations; null where the browser keeps nothing.
let database = null;

function begin() { return fresh(Date.now(), Math.random()); }

function announce(text) { at("announced").textContent = text; }

// What people do.

function send() {
  const question = composer.question();
  if (asking || !question || at("chat").hidden) return;
  if (isEditing) talk.turns.pop();
  setEditing(false);
  composer.empty();
  answerTo(question);
}

function retry() {
  if (!asking) answerTo(talk.turns.pop().question);
}

function edit() {
  if (asking) return;
  composer.fill(talk.turns.at(-1).question);
  setEditing(true);
  at("question").focus();
}

function alone() {
  if (asking) return;
  const { question } = talk.turns.pop();
  talk = begin();
  answerTo(question);
}

function setEditing(isNow) {
  isEditing = isNow;
  at("editing").hidden = !isNow;
}

function stop() {
  asking?.abort();
  asking = null;
}

function open(conversation) {
  stop();
  talk = conversation;
  setEditing(false);
  showTurns();
  showShelf();
}

function startNew() {
  shelf.close();
  open(begin());
  composer.empty();
  at("question").focus();
}

// What the page does for it.

function showTurns() { turns.showAll(talk.turns, { retry, edit, alone }); }

async function answerTo(question) {
  const own = talk, turn = { question, answer: { text: "", thought: "", facts: "", wrong: "" } };
  const controller = asking = new AbortController();
  showTurns();
  own.turns.push(turn);
  setBusy(true);
  const view = turns.addTurn(question);
  try {
    await hear(own.turns, turn.answer, view, controller.signal);
  } catch (error) {
    if (error.name === "AbortError") interrupt(turn.answer);
    else fail(own, turn.answer, error);
  }
  // Another one may have begun since this one was stopped.
  if (asking === controller) asking = null;
  setBusy(asking !== null);
  own.at = Date.now();
  if (own === talk) showTurns();
  await keep(own);
  look();
}

function interrupt(answer) {
  answer.facts = "stopped";
  announce("Stopped.");
}

function fail({ turns }, answer, error) {
  answer.wrong = error.message;
  answer.isTooLong = error.code === "context_length_exceeded" && turns.length > 1;
  announce(error.message);
  refused(error);
}

function setBusy(isBusy) {
  at("stop").hidden = !isBusy;
  at("send").disabled = isBusy;
  at("turns").ariaBusy = String(isBusy);
}

// Shows an answer as it is said: once a frame at most, however many tokens there are.
async function hear(turns, answer, view, signal) {
  const begun = performance.now(), times = { first: null, last: null };
  let isDrawn = true, heard = 0;
  const draw = () => {
    if (isDrawn) {
      isDrawn = false;
      requestAnimationFrame(() => { isDrawn = true; view.show(answer); });
    }
  };
  view.doing("Answering");
  announce("Answering.");
  const response = await ask("v1/chat/completions", request(turns, server.model(), composer.settings()), signal);
  for await (const event of events(response)) {
    if (event.comment) view.doing(event.comment);
    if (event.error) throw new Refusal(event.error.message, 200, event.error.code);
    const delta = event.choices?.[0]?.delta ?? {};
    if (delta.content || delta.reasoning_content) {
      times.last = performance.now() - begun;
      times.first ??= times.last;
      answer.text += delta.content ?? "";
      answer.thought += delta.reasoning_content ?? "";
      draw();
    }
    const ready = sentences(answer.text, heard);
    if (ready) announce(ready);
    heard += ready.length;
    if (event.usage) answer.facts = facts(event.usage, times);
  }
  announce(answer.text.slice(heard) || "The answer is complete.");
}

function refused(error) {
  if (error.status === 401 && !at("door").open) at("door").showModal();
}

async function keep(conversation) {
  if (!database || conversation.isDeleted) return;
  try {
    await history.keep(database, conversation);
  } catch (error) {
    shelf.note(`This conversation is not kept: ${error.message}`);
  }
  await showShelf();
}

async function showShelf() {
  if (!database) return;
  shelf.show(await history.list(database), talk.id, { open: openKept, remove });
}

async function openKept(id) {
  const kept = await history.read(database, id);
  if (kept) open({ id, at: Date.now(), turns: kept });
  else showShelf();
}

async function remove(id) {
  // An answer to it may be under way, after which it would be kept again.
  if (id === talk.id) talk.isDeleted = true;
  await history.remove(database, id);
  if (id === talk.id) startNew();
  else showShelf();
}

async function removeAll() {
  talk.isDeleted = true;
  await history.removeAll(database);
  startNew();
}

function chosen({ name, classifies, embeds, ranks, sees }) {
  const writes = !classifies && !embeds && !ranks;
  for (const id of ["chat", "shelf", "shelf-toggle", "fresh"]) at(id).hidden = !writes;
  at("embed").hidden = !embeds;
  at("rank").hidden = !ranks;
  at("classify").hidden = !classifies;
  at("turns").dataset.empty = sees ? `Ask ${name} something: drop, paste or pick pictures, or ask without one.` : `Ask ${name} something.`;
  if (writes) composer.aim(name, sees);
}

async function openHistory() {
  try {
    database = await history.open();
    await showShelf();
  } catch {
    shelf.note("This browser keeps nothing for pages: conversations last until the page is closed.");
  }
}

function connectDoor(look) {
  at("other-key").addEventListener("click", () => at("door").showModal());
  at("door-close").addEventListener("click", () => at("door").close());
  at("door-form").addEventListener("submit", () => {
    useKey(at("key").value.trim());
    at("key").value = "";
    look();
  });
}

composer.connect({ send, stop });
shelf.connect(removeAll);
vectors.connect(server.model, refused);
ranks.connect(server.model, refused);
labels.connect(server.model, refused);
const look = server.connect(chosen, refused);
connectDoor(look);
at("fresh").addEventListener("click", startNew);
at("keep").addEventListener("click", () => { setEditing(false); composer.empty(); at("question").focus(); });
openHistory();
if (matchMedia("(pointer: fine)").matches) at("question").focus();
