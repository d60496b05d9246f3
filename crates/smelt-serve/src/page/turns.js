// Shows the turns of a conversation.

import { copyButton } from "./copy.js";
import { element, show } from "./render.js";

/** How near to the end counts as being there, in pixels: who reads further up is not pulled down. */
const NEAR = 80;

const place = document.getElementById("turns");

/** Shows all turns.  `acts` are what can be done with the last: {retry, edit}. */
export function showAll(turns, acts) {
  place.replaceChildren(...turns.map((turn, at) => turnNode(turn, at === turns.length - 1 ? acts : null)));
  place.scrollTop = place.scrollHeight;
}

function turnNode(turn, acts) {
  const answer = answerNode();
  if (turn.answer) answer.show(turn.answer);
  if (turn.answer) answer.node.append(actsNode(turn.answer, acts));
  return element("article", { ariaLabel: "Turn" }, questionNode(turn.question), answer.node);
}

function questionNode({ text, pictures }) {
  const shown = pictures.map(picture => element("img", { src: picture.url, alt: described(picture) }));
  return element("div", { className: "question" }, element("span", { className: "heard", textContent: "You asked: " }),
    shown.length > 0 ? element("div", { className: "shown" }, ...shown) : null, text);
}

/** What is said of a picture to who does not see it. */
export function described({ name, width, height }) { return `${name}, ${width} by ${height} pixels`; }

function actsNode(answer, acts) {
  const act = (name, does) => {
    const button = element("button", { type: "button", className: "plain small", textContent: name });
    button.addEventListener("click", does);
    return button;
  };
  return element("div", { className: "acts" },
    answer.text ? copyButton("Copy answer", () => answer.text) : null,
    acts && act("Ask again", acts.retry), acts && act("Edit question", acts.edit),
    acts && answer.isTooLong ? act("Ask without earlier turns", acts.alone) : null);
}

/** Adds a turn that is being answered; `show` is called with what there is of its answer, `doing` with what is done. */
export function addTurn(question) {
  const answer = answerNode();
  place.append(element("article", { ariaLabel: "Turn" }, questionNode(question), answer.node));
  place.scrollTop = place.scrollHeight;
  return { show: said => following(() => answer.show(said)), doing: text => following(() => answer.doing(text)) };
}

// Stays at the end if that was in sight.
function following(act) {
  const isAtEnd = place.scrollHeight - place.scrollTop - place.clientHeight < NEAR;
  act();
  if (isAtEnd) place.scrollTop = place.scrollHeight;
}

function answerNode() {
  const doing = element("p", { className: "doing", hidden: true });
  const thinking = element("div");
  const thought = element("details", { className: "thought", hidden: true }, element("summary", { textContent: "What it thought" }), thinking);
  const text = element("div", { className: "text" });
  const wrong = element("p", { className: "wrong", hidden: true });
  const facts = element("p", { className: "facts", hidden: true });
  const node = element("div", { className: "answer" }, thought, text, doing, wrong, facts);
  const fill = (place, words) => { place.textContent = words; place.hidden = !words; };
  return {
    node,
    doing: words => fill(doing, words),
    show: answer => {
      thought.hidden = !answer.thought;
      thinking.textContent = answer.thought;
      show(text, answer.text);
      fill(wrong, answer.wrong);
      fill(facts, answer.facts);
      if (answer.text || answer.thought || answer.wrong) fill(doing, "");
    },
  };
}
