// What a conversation is: its turns, what of them is sent, what of all conversations is kept.  Plain data alone.
//
// A turn is {question: {text, pictures: [{url, name, width, height}]}, answer: null | {text, thought, facts, wrong}}.

/** What the browser keeps: so many conversations, and so many characters of them, pictures included. */
export const KEPT = { conversations: 50, characters: 64 << 20 };

/** Longest name of a conversation, in characters. */
const TITLE_MAX = 60;

/** What is asked of pictures alone. */
export const OF_PICTURES = "Describe this image.";

/** A conversation without turns. */
export function fresh(now, chance) {
  return { id: `${now.toString(36)}-${Math.floor(chance * 2 ** 32).toString(36)}`, at: now, turns: [] };
}

/** What a conversation is called. */
export function title(turns) {
  const text = turns[0]?.question.text.trim().split("\n")[0] ?? "";
  return text.length > TITLE_MAX ? `${text.slice(0, TITLE_MAX - 1)}…` : text || "Pictures";
}

/** The messages that ask the last turn; earlier ones without an answer are left out. */
export function messages(turns, { system, detail }) {
  const earlier = turns.slice(0, -1).filter(turn => turn.answer?.text);
  const all = earlier.flatMap(turn => [asked(turn.question, detail), { role: "assistant", content: turn.answer.text }]);
  const before = system.trim() === "" ? [] : [{ role: "system", content: system }];
  return [...before, ...all, ...turns.slice(-1).map(turn => asked(turn.question, detail))];
}

function asked({ text, pictures }, detail) {
  if (pictures.length === 0) return { role: "user", content: text };
  const shown = pictures.map(({ url }) => ({ type: "image_url", image_url: { url, detail } }));
  return { role: "user", content: [...shown, { type: "text", text }] };
}

/** The body of a request for the answer to the last turn.  Settings are texts, as fields hold them. */
export function request(turns, model, settings) {
  const number = (name, text) => (text.trim() === "" ? {} : { [name]: Number(text) });
  return {
    ...(model === "" ? {} : { model }),
    messages: messages(turns, settings),
    stream: true, stream_options: { include_usage: true },
    ...number("temperature", settings.temperature),
    ...number("max_tokens", settings.tokens),
    ...number("seed", settings.seed),
  };
}

/** Which conversations are kept no longer, of [{id, at, size}]: the oldest, but never `here`. */
export function surplus(heads, here, limits = KEPT) {
  const newest = heads.toSorted((a, b) => (b.id === here) - (a.id === here) || b.at - a.at);
  let size = 0;
  return newest.filter((head, place) => {
    size += head.size;
    return head.id !== here && (place >= limits.conversations || size > limits.characters);
  }).map(head => head.id);
}

/** What an answer took, in words; `times` in milliseconds: {first, last} since it was asked. */
export function facts(usage, times) {
  const said = usage.completion_tokens;
  const rate = rateOf(said, times.last - times.first);
  return [
    ...(times.first === null ? [] : [`first token ${(times.first / 1000).toFixed(2)} s`]),
    ...(rate === null ? [] : [`${rate.toFixed(1)} tokens/s`]),
    `answer ${said} tokens`,
    `prompt ${usage.prompt_tokens}${ofPrompt(usage.prompt_tokens_details ?? {})}`,
  ].join(" · ");
}

function ofPrompt({ image_tokens, cached_tokens, smaller_images, wished_image_tokens }) {
  const parts = [
    ...(image_tokens ? [`${image_tokens} of pictures`] : []),
    ...(smaller_images ? [`shown smaller than for ${wished_image_tokens}`] : []),
    ...(cached_tokens ? [`${cached_tokens} known before`] : []),
  ];
  return parts.length > 0 ? ` (${parts.join(", ")})` : "";
}

/** Tokens a second; null of a few tokens or a blink, of which a rate says nothing. */
function rateOf(tokens, ms) { return tokens > 8 && ms >= 50 ? (tokens - 1) * 1000 / ms : null; }

/** What of a growing text is ready to be heard: whole sentences and lines beyond the first `heard` characters. */
export function sentences(text, heard) {
  const ends = [...text.slice(heard).matchAll(/[.!?:](?=\s)|\n/g)];
  const last = ends.at(-1);
  return last ? text.slice(heard, heard + last.index + 1) : "";
}
