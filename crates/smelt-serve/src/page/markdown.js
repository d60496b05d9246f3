// Reads Markdown, as models write it, into plain data.  Knows nothing of documents: HTML is text here,
// and only http and https addresses become links.  Hostile texts take time in proportion to their length.

/** Deepest nesting of lists, quotes and emphasis; what is deeper is text. */
const DEPTH_MAX = 8;

/** Longest words and address of a link, in UTF-16 units; what is longer is text. */
const LINK = /\[([^[\]\n]{1,500})\]\(((?:[^\s()]|\([^\s()]*\)){1,2000})(?:\s+"[^"\n]{0,300}")?\)/y;
const ADDRESS = /https?:\/\/[^\s<>"'`]{1,2000}/y;
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+|$)/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)/;
const QUOTE = /^ {0,3}> ?/;
const DIVIDER = /^ *\|?(?: *:?-+:? *\|)*(?: *:?-+:? *)?$/;
const SPECIAL = /[\\`*_~[<\n]|!\[|https?:\/\//g;

/**
 * The blocks of a text: {kind: "paragraph" | "heading" | "code" | "rule" | "table" | "quote" | "list", …}.
 */
export function parse(text) {
  return blocks(text.replace(/\r\n?/g, "\n").split("\n"), 0);
}

function blocks(lines, depth) {
  const all = [];
  for (let at = 0; at < lines.length;) {
    if (isBlank(lines[at])) { at += 1; continue; }
    const [block, next] = block_at(lines, at, depth);
    all.push(block);
    at = next;
  }
  return all;
}

const READERS = [fence, heading, rule, table, quote, list];

function block_at(lines, at, depth) {
  for (const read of READERS) {
    const found = read(lines, at, depth);
    if (found) return found;
  }
  return paragraph(lines, at);
}

function isBlank(line) { return line.trim() === ""; }

function fence(lines, at) {
  const open = FENCE.exec(lines[at]);
  if (!open) return null;
  const [, mark, language] = open;
  const isEnd = line => line.trim().startsWith(mark) && line.trim().replaceAll(mark[0], "") === "";
  const length = lines.slice(at + 1).findIndex(isEnd);
  const end = length < 0 ? lines.length : at + 1 + length;
  return [{ kind: "code", language, text: lines.slice(at + 1, end).join("\n") }, end + 1];
}

function heading(lines, at) {
  const mark = HEADING.exec(lines[at]);
  if (!mark) return null;
  const text = lines[at].slice(mark[0].length).trim().replace(/ #+$/, "");
  return [{ kind: "heading", level: mark[1].length, inside: inline(text) }, at + 1];
}

function rule(lines, at) {
  return RULE.test(lines[at]) ? [{ kind: "rule" }, at + 1] : null;
}

function isTable(lines, at) {
  const below = lines[at + 1];
  return lines[at].includes("|") && below?.includes("-") && DIVIDER.test(below)
    && cells(below).length === cells(lines[at]).length;
}

function table(lines, at) {
  if (!isTable(lines, at)) return null;
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) end += 1;
  const head = cells(lines[at]);
  const row = line => {
    const own = cells(line);
    return head.map((_, column) => inline(own[column] ?? ""));
  };
  return [{ kind: "table", head: row(lines[at]), rows: lines.slice(at + 2, end).map(row) }, end];
}

function cells(line) {
  const parts = line.trim().replace(/^\|/, "").split(/(?<!\\)\|/);
  if (parts.length > 1 && isBlank(parts.at(-1))) parts.pop();
  return parts.map(part => part.trim().replaceAll("\\|", "|"));
}

function quote(lines, at, depth) {
  if (depth >= DEPTH_MAX || !QUOTE.test(lines[at])) return null;
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const own = lines.slice(at, end).map(line => line.replace(QUOTE, ""));
  return [{ kind: "quote", inside: blocks(own, depth + 1) }, end];
}

function list(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  if (depth >= DEPTH_MAX || !first) return null;
  const isOrdered = /\d/.test(first[2]);
  const items = [];
  let end = at;
  for (;;) {
    const next = pastBlanks(lines, end);
    const mark = ITEM.exec(lines[next] ?? "");
    if (!mark || /\d/.test(mark[2]) !== isOrdered || RULE.test(lines[next])) break;
    const [own, after] = item(lines, next, mark);
    items.push(blocks(own, depth + 1));
    end = after;
  }
  return [{ kind: "list", isOrdered, start: Number.parseInt(first[2], 10) || 1, items }, end];
}

// The lines of an item: what stands deeper than its mark, and lines that go on without a break.
function item(lines, at, mark) {
  const depth = mark[1].length;
  const own = [lines[at].slice(mark[0].length)];
  const inner = line => line.slice(Math.min(indent(line), mark[0].length));
  let next = at + 1;
  while (next < lines.length) {
    const after = pastBlanks(lines, next);
    const isDeeper = after < lines.length && indent(lines[after]) > depth;
    const goesOn = after === next && !begins(lines[next]);
    if (!isDeeper && !goesOn) break;
    if (after > next) own.push("");
    own.push(inner(lines[after]));
    next = after + 1;
  }
  return [own, next];
}

function pastBlanks(lines, at) {
  while (at < lines.length && isBlank(lines[at])) at += 1;
  return at;
}

function indent(line) { return line.length - line.trimStart().length; }

function begins(line) {
  return [FENCE, HEADING, RULE, ITEM, QUOTE].some(mark => mark.test(line));
}

function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && !isBlank(lines[end]) && !begins(lines[end]) && !isTable(lines, end)) end += 1;
  const text = lines.slice(at, end).map(line => line.trim()).join("\n");
  return [{ kind: "paragraph", inside: inline(text) }, end];
}

/**
 * The pieces of a line or paragraph: {kind: "text" | "code", text}, {kind: "strong" | "em" | "del" | "link", inside}
 * and {kind: "break"}.
 */
export function inline(text, depth = 0) {
  const all = [];
  // Marks that nothing closes from here on.
  const open = new Set();
  let plain = "";
  const push = piece => {
    if (plain) all.push({ kind: "text", text: plain });
    plain = "";
    all.push(piece);
  };
  for (let at = 0; at < text.length;) {
    SPECIAL.lastIndex = at;
    const special = SPECIAL.exec(text)?.index ?? text.length;
    plain += text.slice(at, special);
    at = special;
    if (at >= text.length) break;
    const [piece, next] = piece_at(text, at, depth, open) ?? [null, at + 1];
    if (!piece) plain += text[at];
    else if (piece.kind === "text") plain += piece.text;
    else push(piece);
    at = next;
  }
  if (plain) all.push({ kind: "text", text: plain });
  return all;
}

function piece_at(text, at, depth, open) {
  switch (text[at]) {
    case "\n": return [{ kind: "break" }, at + 1];
    case "\\": return /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "") ? [{ kind: "text", text: text[at + 1] }, at + 2] : null;
    case "`": return code(text, at, open);
    case "<": return bracketed(text, at);
    case "h": return address(text, at);
    // A picture is named, never fetched.
    case "!": return link(text, at + 1);
    case "[": return link(text, at);
    default: return depth < DEPTH_MAX ? emphasis(text, at, depth, open) : null;
  }
}

function code(text, at, open) {
  const mark = /`+/y;
  mark.lastIndex = at;
  const [ticks] = mark.exec(text);
  const end = open.has(ticks) ? -1 : text.indexOf(ticks, at + ticks.length);
  if (end < 0) {
    open.add(ticks);
    return [{ kind: "text", text: ticks }, at + ticks.length];
  }
  const inner = text.slice(at + ticks.length, end).replaceAll("\n", " ");
  return [{ kind: "code", text: /^ .*[^ ].* $/.test(inner) ? inner.slice(1, -1) : inner }, end + ticks.length];
}

function link(text, at) {
  LINK.lastIndex = at;
  const found = LINK.exec(text);
  const url = found && safe(found[2]);
  return url ? [{ kind: "link", url, inside: [{ kind: "text", text: found[1] }] }, LINK.lastIndex] : null;
}

function bracketed(text, at) {
  const found = address(text, at + 1);
  return found && text[found[1]] === ">" ? [found[0], found[1] + 1] : null;
}

function address(text, at) {
  ADDRESS.lastIndex = at;
  const found = ADDRESS.exec(text)?.[0].replace(/[.,;:!?)\]*_~]{1,8}$/, "");
  const url = found && safe(found);
  return url ? [{ kind: "link", url, inside: [{ kind: "text", text: found }] }, at + found.length] : null;
}

/** The address as a browser reads it, if it is of the web; null for all others. */
export function safe(address) {
  if (!URL.canParse(address)) return null;
  const url = new URL(address);
  return url.protocol === "http:" || url.protocol === "https:" ? url.href : null;
}

const EMPHASES = [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];

function emphasis(text, at, depth, open) {
  const found = EMPHASES.find(([mark]) => text.startsWith(mark, at));
  if (!found) return null;
  const [mark, kind] = found;
  const whole = [{ kind: "text", text: mark }, at + mark.length];
  const isInWord = mark[0] === "_" && /\w/.test(text[at - 1] ?? "");
  if (isInWord || /\s/.test(text[at + mark.length] ?? " ") || open.has(mark)) return whole;
  const end = closing(text, mark, at + mark.length);
  if (end < 0) {
    open.add(mark);
    return whole;
  }
  return [{ kind, inside: inline(text.slice(at + mark.length, end), depth + 1) }, end + mark.length];
}

// Where a mark closes: behind something, and for underscores not within a word.
function closing(text, mark, from) {
  for (let at = text.indexOf(mark, from + 1); at >= 0; at = text.indexOf(mark, at + 1)) {
    const isDouble = mark.length === 1 && text[at + 1] === mark;
    if (isDouble) { at += 1; continue; }
    // Of three marks the last two close.
    if (mark.length === 2 && text[at + 2] === mark[0]) continue;
    const isInWord = mark[0] === "_" && /\w/.test(text[at + mark.length] ?? "");
    if (!/\s/.test(text[at - 1]) && !isInWord) return at;
  }
  return -1;
}
