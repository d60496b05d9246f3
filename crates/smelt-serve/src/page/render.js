// Makes a document of what `markdown.js` read.  Every text goes in as text, never as HTML.

import { parse } from "./markdown.js";
import { copyButton } from "./copy.js";

/** An element with properties and children; what is null is left out. */
export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children.filter(child => child !== null));
  return made;
}

// What each place shows, so that what stays the same stays as it is: focus, selection and scrolling with it.
const shown = new WeakMap();

/** Shows a Markdown text in `place`; blocks that are there already are left alone. */
export function show(place, text) {
  const before = shown.get(place) ?? [];
  const blocks = parse(text).map(block => ({ block, written: JSON.stringify(block) }));
  const differs = blocks.findIndex(({ written }, at) => written !== before[at]?.written);
  const same = differs < 0 ? blocks.length : differs;
  const growing = place.children[same];
  shown.set(place, blocks);
  if (isGrowing(before[same], blocks[same]) && blocks.length === same + 1 && growing) {
    growing.querySelector("code").textContent = blocks[same].block.text;
    return;
  }
  while (place.children.length > same) place.lastElementChild.remove();
  place.append(...blocks.slice(same).map(({ block }) => blockNode(block)));
}

function isGrowing(before, now) {
  return before?.block.kind === "code" && now?.block.kind === "code" && before.block.language === now.block.language;
}

const BLOCKS = {
  paragraph: block => element("p", {}, ...pieces(block.inside)),
  // The page has headings of its own above these.
  heading: block => element(`h${Math.min(block.level + 2, 6)}`, {}, ...pieces(block.inside)),
  rule: () => element("hr"),
  quote: block => element("blockquote", {}, ...block.inside.map(blockNode)),
  list: listNode,
  table: tableNode,
  code: codeNode,
};

function blockNode(block) { return BLOCKS[block.kind](block); }

function listNode(block) {
  const list = element(block.isOrdered ? "ol" : "ul");
  if (block.isOrdered) list.start = block.start;
  list.append(...block.items.map(inside => element("li", {}, ...inside.map(blockNode))));
  return list;
}

function tableNode(block) {
  const row = (cells, kind) => element("tr", {}, ...cells.map(cell => element(kind, {}, ...pieces(cell))));
  const head = element("thead", {}, row(block.head, "th"));
  const body = element("tbody", {}, ...block.rows.map(cells => row(cells, "td")));
  return element("div", { className: "table", tabIndex: 0, role: "group", ariaLabel: "Table" },
    element("table", {}, head, body));
}

function codeNode(block) {
  const code = element("code", { textContent: block.text });
  const bar = element("div", { className: "bar" }, element("span", { textContent: block.language || "code" }),
    copyButton("Copy code", () => code.textContent));
  const pre = element("pre", { tabIndex: 0, role: "group", ariaLabel: `Code ${block.language}`.trim() }, code);
  return element("div", { className: "code" }, bar, pre);
}

function pieces(all) { return all.map(pieceNode); }

function pieceNode(piece) {
  switch (piece.kind) {
    case "text": return document.createTextNode(piece.text);
    case "break": return element("br");
    case "code": return element("code", { textContent: piece.text });
    case "link": return element("a", { href: piece.url, target: "_blank", rel: "noopener noreferrer" }, ...pieces(piece.inside));
    default: return element(piece.kind, {}, ...pieces(piece.inside));
  }
}
