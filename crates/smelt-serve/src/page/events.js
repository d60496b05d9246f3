// Reads server-sent events.

/**
 * What a piece of a stream completes: {events: [{comment} | {data}], rest}.  `rest` goes before the next piece.
 */
export function cut(rest, piece) {
  const parts = (rest + piece).split(/\r?\n\r?\n/);
  const left = parts.pop();
  return { events: parts.flatMap(event), rest: left };
}

function event(part) {
  const lines = part.split(/\r?\n/);
  const of = mark => lines.filter(line => line.startsWith(mark)).map(line => line.slice(mark.length).replace(/^ /, ""));
  const comments = of(":").map(comment => ({ comment }));
  const data = of("data:");
  return data.length > 0 ? [...comments, { data: data.join("\n") }] : comments;
}

/** The events of a response: {comment}, or the JSON of its data. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const found = cut(rest, value);
    rest = found.rest;
    for (const { comment, data } of found.events) {
      if (comment !== undefined) yield { comment };
      else if (data !== "[DONE]") yield JSON.parse(data);
    }
  }
}
