"""Renders conversations by templates of our own with transformers.

Run from anywhere: `python generate.py` rewrites `cases.json` beside itself, byte for byte the same
with these versions.

Made with Python 3.11, transformers 5.23.0, jinja2 3.1.6.

The templates use what those of published models use: Hermes' and Qwen's tools and thoughts, Llama's
dates and indented JSON, Mistral's turns.  The renderer is that of `apply_chat_template`; its clock is
given, all else is transformers' own.
"""

import json
from datetime import datetime, timezone
from pathlib import Path

import jinja2
from transformers.utils.chat_template_utils import _compile_jinja_template

HERE = Path(__file__).resolve().parent
NOW_S = 1_735_689_600
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'The <weather> of a "city" & é',
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": ["integer", "null"], "default": 3}},
            "required": ["city"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}


def user(content):
    return {"role": "user", "content": content}


def system(content):
    return {"role": "system", "content": content}


def said(content, **fields):
    return {"role": "assistant", "content": content, **fields}


def call(name, **arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def told(content):
    return {"role": "tool", "content": content}


ASKED = call("weather", city="Łódź", days=2, exact=1.5, dry=True, note=None, list=[1, "a"])
CONVERSATIONS = [
    {"messages": [user(" Hi  ")]},
    {"messages": [user("Hi"), said("\n Hello")], "add_generation_prompt": False},
    {"messages": [system("Be brief.\n\n"), user("a<b>&'c'"), said("ok"), user("more")]},
    {"messages": [user("q"), said("<think>\nhm\n</think>\n\na"), user("r"), said("b", reasoning_content="\nso\n")], "add_generation_prompt": False},
    {"messages": [user("q")], "enable_thinking": False},
    {"messages": [user("q")], "default_system": "Be kind."},
    {"messages": [user("w?")], "tools": [WEATHER, CLOCK]},
    {"messages": [system("S\n"), user("w?")], "tools": [WEATHER]},
    {"messages": [user("w?"), said("", tool_calls=[ASKED]), told("{\"t\": 1}\n"), said("1"), user("thanks")], "tools": [WEATHER]},
    {"messages": [user("w?"), said("Both", tool_calls=[ASKED, call("clock")], reasoning_content="x"), told("1"), told("2")], "tools": [WEATHER, CLOCK]},
    {"messages": [user("w?"), said("", tool_calls=[ASKED]), told([{"t": 1}])], "tools": []},
    {"messages": [user([{"type": "image"}, {"type": "text", "text": "What?"}]), said([{"type": "text", "text": "A cat"}])]},
    {"messages": [user([{"type": "sound"}])]},
    {"messages": [user("a"), user("b")]},
    {"messages": [user("a")], "raise": True},
    {"messages": [{"role": "judge", "content": "x"}]},
]


def rendered(source, conversation):
    """The text, or null where the template refuses."""
    now = datetime.fromtimestamp(NOW_S, timezone.utc)
    told = {"add_generation_prompt": True, "tools": None, "documents": None, **conversation, **TOKENS}
    try:
        return _compile_jinja_template(source).render(strftime_now=now.strftime, **told)
    except (jinja2.TemplateError, TypeError):
        return None


def main():
    cases = []
    for path in sorted(HERE.glob("*.jinja")):
        for conversation in CONVERSATIONS:
            text = rendered(path.read_text(), conversation)
            cases.append({"template": path.name, **conversation, "text": text})
        texts = [case["text"] for case in cases[-len(CONVERSATIONS) :]]
        print(path.name, len(texts), "conversations,", texts.count(None), "refused")
    told = {"now_s": NOW_S, "tokens": TOKENS, "cases": cases}
    (HERE / "cases.json").write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
