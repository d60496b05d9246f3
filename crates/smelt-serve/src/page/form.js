// Forms for models that write nothing: what they share.

import { element } from "./render.js";

const at = id => document.getElementById(id);

/** Shows behind the form `id` what `act()` makes when it is sent, or what went wrong, of which `refused` hears too. */
export function connect(id, act, refused) {
  const form = at(id), trouble = form.querySelector("[role=alert]"), send = form.querySelector("button");
  form.addEventListener("submit", async event => {
    event.preventDefault();
    trouble.textContent = "";
    send.disabled = true;
    try {
      form.nextElementSibling.replaceChildren(...await act());
    } catch (error) {
      trouble.textContent = error.message;
      refused(error);
    }
    send.disabled = false;
  });
}

/** The lines of a field that say something. */
export function lines(id) { return at(id).value.split("\n").map(text => text.trim()).filter(text => text !== ""); }

/** A table with the first cell of each row as its name; `style(text)` gives a cell's properties, `near` its shade from 0 to 1. */
export function table(heads, rows, style) {
  const cell = text => {
    const { near, ...properties } = style(text);
    const made = element("td", { ...properties, textContent: text });
    if (near !== undefined) made.style.setProperty("--near", `${Math.round(near * 60)}%`);
    return made;
  };
  const name = text => element("th", { textContent: text, scope: "col" });
  const row = ([first, ...rest]) => element("tr", {}, element("th", { textContent: first, scope: "row" }), ...rest.map(cell));
  const made = element("table", {}, element("thead", {}, element("tr", {}, ...heads.map(name))),
    element("tbody", {}, ...rows.map(row)));
  return element("div", { className: "table", tabIndex: 0, role: "group", ariaLabel: "Table" }, made);
}
