// Copies text, also where browsers lend pages no clipboard: over plain HTTP from another machine.

/** For how long a button says that it has copied, in milliseconds. */
const DONE_MS = 1500;

/** A button that copies what `text()` says then. */
export function copyButton(name, text) {
  const button = Object.assign(document.createElement("button"), { type: "button", className: "plain small", textContent: name });
  button.addEventListener("click", async () => {
    button.textContent = await copy(text()) ? "Copied" : "Not copied";
    setTimeout(() => { button.textContent = name; }, DONE_MS);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

function copyBySelection(text) {
  const field = Object.assign(document.createElement("textarea"), { value: text, className: "heard" });
  const focused = document.activeElement;
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return isCopied;
}
