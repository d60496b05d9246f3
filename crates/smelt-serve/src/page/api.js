// Asks the server, with the key if there is one, and says what it refused in its own words.

const KEY = "smelt-key";

/** What the server would not do, in its words. */
export class Refusal extends Error {
  constructor(message, status, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** From now on this key is sent; none if it is empty.  Otherwise the browser sends the one that it asked for. */
export function useKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

/** The response to a GET, or to a POST where there is a body. */
export async function ask(path, body, signal) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...(key ? { authorization: `Bearer ${key}` } : {}), ...(body ? { "content-type": "application/json" } : {}) };
  const response = await send(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
  if (response.ok) return response;
  const refused = await refusal(response);
  // A key that was typed in meanwhile, be it while the refusal was read, has not been refused.
  if (refused.status === 401 && sessionStorage.getItem(KEY) !== key) return ask(path, body, signal);
  throw refused;
}

async function send(path, request) {
  try {
    return await fetch(path, request);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("The server does not answer.", 0);
  }
}

async function refusal(response) {
  const told = (await response.json().catch(() => null))?.error;
  const message = typeof told === "string" ? told : told?.message;
  return new Refusal(message ?? `The server answered with ${response.status}.`, response.status, told?.code);
}
