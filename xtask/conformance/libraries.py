"""Holds a running server against the libraries that programs speak to models through.

    python libraries.py http://127.0.0.1:8000 PICTURES

PICTURES is a directory with shapes-1.png, which the demo's model knows.  The server has the demo, whose answers are
known, and a chat template that knows tools.
"""

import base64
import json
import logging
import os
import pathlib
import sys
from typing import Literal

# Otherwise litellm asks for newer prices than its own, and LangChain tells what it runs.
os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false"}

import anthropic
import instructor
import litellm
import ollama
import openai
from instructor.core import InstructorRetryException
from langchain_anthropic import ChatAnthropic
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import ToolMessage
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI
from llama_index.core.llms import ChatMessage, ImageBlock, TextBlock
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, ConfigDict, Field

from checks import refused, run

base, picture = sys.argv[1], pathlib.Path(sys.argv[2]) / "shapes-1.png"
shapes = base64.b64encode(picture.read_bytes()).decode()
MODEL, QUESTION, ANSWER = "shapes-vl", "What is left of the red circle?", "a blue circle"
# More than the model's context holds.
LONG = "word " * 5000
litellm.suppress_debug_info = True
# What fails, checks tell.
logging.disable(logging.ERROR)


class Count(BaseModel):
    """How many there are, which the demo's model has not learnt to say in JSON."""

    model_config = ConfigDict(extra="forbid")
    circles: int = Field(ge=0, le=9)


def shown(question):
    url = {"url": "data:image/png;base64," + shapes}
    return [{"role": "user", "content": [{"type": "image_url", "image_url": url}, {"type": "text", "text": question}]}]


def through_litellm(provider, **fields):
    address = base if provider in ("ollama", "ollama_chat", "anthropic") else base + "/v1"
    asked = dict(model=MODEL, messages=shown(QUESTION), temperature=0, max_tokens=60, num_retries=0, timeout=60) | fields
    asked["model"] = f"{provider}/{asked['model']}"
    return litellm.completion(api_base=address, api_key="none", **asked)


def litellm_is_answered():
    for provider in ("openai", "hosted_vllm", "anthropic", "ollama_chat"):
        answer = through_litellm(provider)
        assert answer.choices[0].message.content == ANSWER, (provider, answer)
        assert answer.choices[0].finish_reason == "stop" and answer.usage.completion_tokens > 0, (provider, answer)
        parts = [part.choices[0].delta.content or "" for part in through_litellm(provider, stream=True)]
        assert "".join(parts) == ANSWER, (provider, parts)


def litellm_generates():
    """It writes Ollama's prompts itself, as the demo's model has not learnt them."""
    answer, unseen = through_litellm("ollama"), through_litellm("ollama", messages=[{"role": "user", "content": QUESTION}])
    assert answer.choices[0].message.content and answer.usage.prompt_tokens > unseen.usage.prompt_tokens, answer


FIND = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Finds",
        "parameters": {
            "type": "object",
            "properties": {"colour": {"enum": ["red", "blue"]}},
            "required": ["colour"],
            "additionalProperties": False,
        },
    },
}


def litellm_calls_tools():
    for provider in ("openai", "hosted_vllm", "anthropic"):
        answer = through_litellm(provider, messages=shown("Find it."), tools=[FIND], tool_choice="required", max_tokens=200)
        call = answer.choices[0].message.tool_calls[0].function
        assert call.name == "find" and json.loads(call.arguments)["colour"] in ("red", "blue"), (provider, answer)


def litellm_asks_for_responses():
    content = [{"type": "input_image", "image_url": "data:image/png;base64," + shapes}, {"type": "input_text", "text": QUESTION}]
    asked = dict(model=f"openai/{MODEL}", api_base=base + "/v1", api_key="none", temperature=0)
    answer = litellm.responses(input=[{"role": "user", "content": content}], **asked)
    assert answer.output[0].content[0].text == ANSWER, answer


def litellm_is_refused():
    for provider in ("openai", "hosted_vllm", "anthropic"):
        refused(litellm.NotFoundError, lambda: through_litellm(provider, model="another"))
        long = [{"role": "user", "content": LONG}]
        refused(litellm.ContextWindowExceededError, lambda: through_litellm(provider, messages=long))


def open_chat(**fields):
    return ChatOpenAI(base_url=base + "/v1", api_key="none", max_retries=0, **{"model": MODEL, "temperature": 0, **fields})


def langchains():
    return {
        "chat": open_chat(),
        "responses": open_chat(use_responses_api=True),
        "ollama": ChatOllama(model=MODEL, base_url=base, temperature=0, validate_model_on_init=True),
        "anthropic": ChatAnthropic(model=MODEL, base_url=base, api_key="none", max_tokens=200, max_retries=0, temperature=0),
    }


def langchain_is_answered():
    for name, chat in langchains().items():
        answer = chat.invoke(shown(QUESTION))
        assert answer.text == ANSWER and answer.usage_metadata["output_tokens"] > 0, (name, answer)
        parts = [part.text for part in chat.stream(shown(QUESTION))]
        assert len(parts) > 1 and "".join(parts) == ANSWER, (name, parts)


def langchain_calls_tools():
    for name, chat in langchains().items():
        if name == "ollama":
            # Its API cannot say that a tool must be called.
            continue
        bound = chat.bind_tools([FIND], tool_choice="find")
        answer = bound.invoke(shown("Find it."))
        [call] = answer.tool_calls
        assert call["name"] == "find" and call["args"]["colour"] in ("red", "blue"), (name, answer)
        turns = [*shown("Find it."), answer, ToolMessage("left", tool_call_id=call["id"])]
        assert chat.bind_tools([FIND]).invoke(turns), name


def langchain_structures():
    for name, chat in langchains().items():
        found = chat.with_structured_output(Count).invoke(shown("How many circles are there?"))
        assert isinstance(found, Count), (name, found)


def langchain_is_refused():
    long = [{"role": "user", "content": LONG}]
    for name in ("chat", "responses"):
        refused(ContextOverflowError, lambda: langchains()[name].invoke(long))
    refused(openai.NotFoundError, lambda: open_chat(model="another").invoke("a"))
    refused(anthropic.NotFoundError, lambda: ChatAnthropic(model="another", base_url=base, api_key="none").invoke("a"))
    refused(ollama.ResponseError, lambda: ChatOllama(model="another", base_url=base).invoke("a"))


def index(**fields):
    asked = dict(model=MODEL, context_window=512, is_chat_model=True, is_function_calling_model=True, temperature=0)
    return OpenAILike(api_base=base + "/v1", api_key="none", max_retries=0, **{**asked, **fields})


def in_blocks(question):
    return [ChatMessage(role="user", blocks=[ImageBlock(path=picture), TextBlock(text=question)])]


def llama_index_is_answered():
    assert index().chat(in_blocks(QUESTION)).message.content == ANSWER
    parts = [part.delta for part in index().stream_chat(in_blocks(QUESTION))]
    assert "".join(parts) == ANSWER, parts
    assert index(is_chat_model=False, max_tokens=4).complete("The red").text


def llama_index_calls_tools():
    def find(colour: Literal["red", "blue"]) -> str:
        """Finds"""
        return colour

    tool = FunctionTool.from_defaults(find)
    answer = index(max_tokens=100).chat_with_tools([tool], chat_history=in_blocks("Find it."), tool_required=True)
    [call] = index().get_tool_calls_from_response(answer)
    assert call.tool_name == "find" and call.tool_kwargs["colour"] in ("red", "blue"), answer


def llama_index_structures():
    held = index(should_use_structured_outputs=True).as_structured_llm(Count).chat(in_blocks("How many circles are there?"))
    assert isinstance(held.raw, Count), held


def llama_index_is_refused():
    refused(openai.NotFoundError, lambda: index(model="another").chat(in_blocks("a")))


def instructed(mode, **fields):
    client = instructor.from_openai(openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0), mode=mode)
    content = ["How many circles are there?", instructor.Image.from_path(picture)]
    asked = dict(model=MODEL, response_model=Count, temperature=0, messages=[{"role": "user", "content": content}])
    return client.create(**{**asked, **fields})


def instructor_structures():
    modes = instructor.Mode
    for mode in (modes.JSON_SCHEMA, modes.TOOLS, modes.RESPONSES_TOOLS):
        assert isinstance(instructed(mode), Count), mode


def instructor_is_refused():
    mode = instructor.Mode.JSON_SCHEMA
    error = refused(InstructorRetryException, lambda: instructed(mode, model="another", max_retries=1))
    assert isinstance(error.__cause__, openai.NotFoundError) or "NotFound" in repr(error), repr(error)


run([
    litellm_is_answered, litellm_generates, litellm_calls_tools, litellm_asks_for_responses, litellm_is_refused,
    langchain_is_answered, langchain_calls_tools, langchain_structures, langchain_is_refused,
    llama_index_is_answered, llama_index_calls_tools, llama_index_structures, llama_index_is_refused,
    instructor_structures, instructor_is_refused,
])
