"""Holds a running server of SmolLM2 against libraries whose use the demo's model cannot follow.

    python small_model.py http://127.0.0.1:8000 DEPLOYMENT

DEPLOYMENT is the directory that has the model's tokenizer.  What the model says is held against what is true, not only
to the form that is asked for.
"""

import logging
import os
import pathlib
import sys

# The harness is to find everything here, and need no bars to be told how far it is.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TQDM_DISABLE": "1"}

import instructor
import openai
from llama_index.core import Document, SummaryIndex
from llama_index.llms.openai_like import OpenAILike
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
from pydantic import BaseModel, ConfigDict, Field

from checks import run

base, deployment = sys.argv[1] + "/v1", sys.argv[2]
MODEL = "smollm2-135m-instruct"
TASKS = pathlib.Path(__file__).with_name("tasks")


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=120)


TOLD = {
    "Jason is 25 years old.": Person(name="Jason", age=25),
    "Anna is 31 years old.": Person(name="Anna", age=31),
    "Bob, aged 44, lives in Oslo": Person(name="Bob", age=44),
}


def instructor_finds_what_is_told():
    mode = instructor.Mode.JSON_SCHEMA
    client = instructor.from_openai(openai.OpenAI(base_url=base, api_key="none", max_retries=0), mode=mode)
    for text, person in TOLD.items():
        asked = dict(model=MODEL, response_model=Person, temperature=0, max_tokens=200, messages=[{"role": "user", "content": text}])
        *_, last = client.create_partial(**asked)
        for found in (client.create(**asked), last):
            assert found.model_dump() == person.model_dump(), found


def index(**fields):
    asked = dict(model=MODEL, context_window=2048, is_chat_model=True, temperature=0, max_tokens=40, max_retries=0)
    return OpenAILike(api_base=base, api_key="none", should_use_structured_outputs=True, **{**asked, **fields})


def llama_index_finds_what_is_told():
    for text, person in TOLD.items():
        found = index().as_structured_llm(Person).complete(text).raw
        assert found == person, found


def llama_index_answers_from_documents():
    documents = [Document(text="Anna lives in Oslo. Bob lives in Lima.")]
    engine = SummaryIndex.from_documents(documents).as_query_engine(llm=index())
    answer = str(engine.query("Where does Bob live?"))
    assert "Lima" in answer and "Oslo" not in answer, answer
    said = index(is_chat_model=False, max_tokens=2).complete("The capital of France is").text
    assert said.startswith(" Paris"), said


def evaluated(kind, path, *tasks, **fields):
    """What lm-evaluation-harness finds, as `lm_eval run` does."""
    arguments = dict(base_url=base + path, model=MODEL, num_concurrent=4, max_retries=1, **fields)
    manager = TaskManager(include_path=str(TASKS), include_defaults=False)
    asked = dict(model=kind, model_args=arguments, tasks=list(tasks), task_manager=manager)
    return simple_evaluate(apply_chat_template=kind == "local-chat-completions", **asked)["results"]


def the_harness_evaluates():
    tokens = dict(tokenizer_backend="huggingface", tokenizer=deployment)
    found = evaluated("local-completions", "/completions", "capitals", "goes_on", **tokens)
    assert (found["capitals"]["acc,none"], found["goes_on"]["exact_match,none"]) == (1, 1), found
    found = evaluated("local-chat-completions", "/chat/completions", "goes_on")
    assert "exact_match,none" in found["goes_on"], found


# What fails, checks tell.
logging.disable(logging.ERROR)
# The data of tasks is named from here.
os.chdir(TASKS)
run([
    instructor_finds_what_is_told, llama_index_finds_what_is_told, llama_index_answers_from_documents, the_harness_evaluates,
])
