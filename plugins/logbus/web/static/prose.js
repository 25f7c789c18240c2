// Sentences of the server as a page shows them. The server writes commands between backticks: here they become code with a button that
// copies them. Left as they are, a backtick that is copied along is a command substitution to a shell.

import { h } from "./dom.js";

const COPIED_MS = 1_500;

function select(element) {
  const range = document.createRange();
  range.selectNodeContents(element);
  const selection = window.getSelection();
  selection.removeAllRanges();
  selection.addRange(range);
}

// If the browser offers no clipboard (a page without TLS on another machine), the text is selected, for Ctrl-C.
async function copy(button, element) {
  try {
    await navigator.clipboard.writeText(element.textContent);
    button.textContent = "Copied";
  } catch {
    select(element);
    button.textContent = "Selected";
  }
  window.setTimeout(() => (button.textContent = "Copy"), COPIED_MS);
}

export function copyable(command) {
  const code = h("code", { tabindex: "0" }, command);
  const button = h(
    "button",
    { type: "button", class: "copy", "aria-label": `Copy ${command}`, onclick: () => copy(button, code) },
    "Copy",
  );
  return h("span", { class: "copyable" }, code, button);
}

// A sentence; the text between backticks is a command or a name.
export function prose(text) {
  if (!text?.includes("`")) return text ?? null;
  return text.split("`").map((part, index) => (index % 2 ? (part.includes(" ") ? copyable(part) : h("code", {}, part)) : part));
}
