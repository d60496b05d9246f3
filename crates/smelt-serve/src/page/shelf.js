// The list of conversations that are kept.

import { element } from "./render.js";

const at = id => document.getElementById(id);

/** Shows the conversations; `acts` are {open, remove}, each by id. */
export function show(heads, here, acts) {
  at("kept").replaceChildren(...heads.map(head => headNode(head, head.id === here, acts)));
  at("forget").hidden = heads.length === 0;
}

function headNode(head, isHere, acts) {
  const open = element("button", { type: "button", className: "open", textContent: head.title, title: head.title });
  if (isHere) open.ariaCurrent = "true";
  open.addEventListener("click", () => { close(); acts.open(head.id); });
  const remove = element("button", { type: "button", className: "drop", textContent: "×", ariaLabel: `Delete ${head.title}` });
  remove.addEventListener("click", () => acts.remove(head.id));
  const node = element("li", {}, open, remove);
  if (isHere) node.dataset.here = "";
  return node;
}

/** Says why nothing is kept. */
export function note(text) { at("shelf-note").textContent = text; }

/** On a small screen the list takes the place of the chat until something is chosen. */
export function connect(removeAll) {
  at("shelf-toggle").addEventListener("click", () => setOpen(!at("shelf").classList.contains("open")));
  at("forget").addEventListener("click", () => {
    if (confirm("Delete all conversations of this browser?")) removeAll();
  });
}

export function close() { setOpen(false); }

function setOpen(isOpen) {
  at("shelf").classList.toggle("open", isOpen);
  at("shelf-toggle").ariaExpanded = String(isOpen);
}
