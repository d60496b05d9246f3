// Keeps conversations in this browser (IndexedDB), within bounds.  Heads are apart, so that a list reads no pictures.

import { surplus, title } from "./conversation.js";

const STORES = ["heads", "bodies"];

/** Opens what is kept.  Where a browser keeps nothing for pages, the error says so. */
export function open() {
  return new Promise((done, failed) => {
    const opening = indexedDB.open("smelt", 1);
    opening.onupgradeneeded = () => STORES.forEach(name => opening.result.createObjectStore(name, { keyPath: "id" }));
    opening.onsuccess = () => done(opening.result);
    opening.onerror = () => failed(opening.error);
  });
}

/** {id, at, title, size} of each conversation, the newest first. */
export async function list(database) {
  const heads = await result(database.transaction("heads").objectStore("heads").getAll());
  return heads.sort((a, b) => b.at - a.at);
}

/** The turns of a conversation; undefined if another tab deleted it. */
export async function read(database, id) {
  return (await result(database.transaction("bodies").objectStore("bodies").get(id)))?.turns;
}

/** Keeps a conversation, and forgets the oldest ones beyond the bounds. */
export async function keep(database, { id, at, turns }) {
  const head = { id, at, title: title(turns), size: JSON.stringify(turns).length };
  const others = (await list(database)).filter(other => other.id !== id);
  const gone = surplus([head, ...others], id);
  await change(database, (heads, bodies) => {
    heads.put(head);
    bodies.put({ id, turns });
    gone.forEach(old => { heads.delete(old); bodies.delete(old); });
  });
}

export function remove(database, id) {
  return change(database, (heads, bodies) => { heads.delete(id); bodies.delete(id); });
}

export function removeAll(database) {
  return change(database, (heads, bodies) => { heads.clear(); bodies.clear(); });
}

function change(database, act) {
  return new Promise((done, failed) => {
    const transaction = database.transaction(STORES, "readwrite");
    transaction.oncomplete = () => done();
    transaction.onabort = () => failed(transaction.error);
    act(...STORES.map(name => transaction.objectStore(name)));
  });
}

function result(request) {
  return new Promise((done, failed) => {
    request.onsuccess = () => done(request.result);
    request.onerror = () => failed(request.error);
  });
}
