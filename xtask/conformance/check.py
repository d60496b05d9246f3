"""Holds a running server against the official clients of OpenAI's, Anthropic's, Ollama's and Cohere's APIs.

    python check.py http://127.0.0.1:8000 PICTURES 4318

PICTURES is a directory with shapes-1.png, which the demo's model knows, and clips.  The server has the encoders of
encoder.toml, reranker.toml and classifier.toml besides, and a chat template that knows tools.  The last argument is
the port to which the server sends its spans.
"""

import base64
import json
import pathlib
import random
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import anthropic
import cohere
import ollama
import openai
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from checks import refused, run

base, pictures, collector = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])
client = openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0, timeout=60)
claude = anthropic.Anthropic(base_url=base, api_key="none", max_retries=0, timeout=60)
llama = ollama.Client(host=base, timeout=60)
ranker = cohere.ClientV2(api_key="none", base_url=base, timeout=60)
first_ranker = cohere.Client(api_key="none", base_url=base, timeout=60)
shapes = base64.b64encode((pictures / "shapes-1.png").read_bytes()).decode()
MODEL = client.models.list().data[0].id


def asked(question, *urls, detail="auto"):
    image = lambda url: {"type": "image_url", "image_url": {"url": url, "detail": detail}}
    return [{"role": "user", "content": [*map(image, urls), {"type": "text", "text": question}]}]


def shown(question):
    return asked(question, "data:image/png;base64," + shapes)


def ask(messages, **fields):
    return client.chat.completions.create(model=MODEL, messages=messages, **{"temperature": 0, **fields})


def metric(name):
    text = urllib.request.urlopen(base + "/metrics").read().decode()
    values = [line.split()[-1] for line in text.splitlines() if line.startswith((name + " ", name + "{"))]
    assert values, name
    return sum(map(float, values))


def models():
    assert client.models.retrieve(MODEL).id == MODEL
    refused(openai.NotFoundError, lambda: client.models.retrieve("another"))


def a_picture_is_seen():
    answer = ask(shown("What is left of the red circle?"))
    assert answer.object == "chat.completion" and answer.model == MODEL and answer.id.startswith("chatcmpl-")
    [choice] = answer.choices
    assert choice.message.role == "assistant" and choice.finish_reason == "stop"
    assert choice.message.content == "a blue circle", choice.message.content
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    details = usage.prompt_tokens_details
    assert 0 < details.image_tokens < usage.prompt_tokens, usage


def moving(part):
    return [{"role": "user", "content": [part, {"type": "text", "text": "How many circles are there?"}]}]


def clips_are_seen_frame_by_frame():
    tokens = lambda part: ask(moving(part), max_tokens=4).usage.prompt_tokens_details.image_tokens
    frame = "data:image/png;base64," + shapes
    one = tokens({"type": "video", "video": [frame]})
    assert tokens({"type": "video", "video": [frame] * 3, "fps": 2}) == 3 * one
    assert tokens({"type": "video", "video": [frame] * 3, "nframes": 2}) == 2 * one
    film = base64.b64encode((pictures / "clips/three.webp").read_bytes()).decode()
    assert tokens({"type": "video_url", "video_url": {"url": "data:image/webp;base64," + film}}) == 3 * one


def films_are_seen():
    """A film of two seconds at 10 frames a second, its index behind its pictures."""
    with tempfile.TemporaryDirectory() as folder:
        film = pathlib.Path(folder) / "film.mp4"
        words = ["-f", "lavfi", "-i", "testsrc=size=448x448:rate=10:duration=2", "-c:v", "libx264", "-pix_fmt", "yuv420p"]
        subprocess.run(["ffmpeg", "-v", "error", "-nostdin", *words, film], check=True)
        url = "data:video/mp4;base64," + base64.b64encode(film.read_bytes()).decode()
    tokens = lambda **more: ask(moving({"type": "video_url", "video_url": {"url": url}}), max_tokens=4, extra_body=more).usage.prompt_tokens_details.image_tokens
    one = tokens(media_io_kwargs={"video": {"num_frames": 1}})
    assert tokens(media_io_kwargs={"video": {"num_frames": 3}}) == 3 * one
    assert tokens(mm_processor_kwargs={"fps": 2}) == 4 * one


def tool(name):
    colour = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": "Finds", "parameters": colour}}


def tools_are_called():
    offered = dict(tools=[tool("find"), tool("paint")], parallel_tool_calls=False, max_tokens=200)
    for choice in ["required", {"type": "function", "function": {"name": "paint"}}]:
        answer = ask(shown("Find it."), tool_choice=choice, **offered).choices[0]
        [call] = answer.message.tool_calls
        assert answer.finish_reason == "tool_calls" and answer.message.content is None, answer
        assert call.type == "function" and call.function.name in ("find", "paint") and call.id
        assert json.loads(call.function.arguments)["colour"] in ("red", "blue")
        name, arguments = "", ""
        for chunk in ask(shown("Find it."), tool_choice=choice, stream=True, **offered):
            for part in chunk.choices[0].delta.tool_calls or []:
                assert part.index == 0
                name, arguments = name + (part.function.name or ""), arguments + (part.function.arguments or "")
            reason = chunk.choices[0].finish_reason
        assert (name, arguments, reason) == (call.function.name, call.function.arguments, "tool_calls")
    assert call.function.name == "paint"
    none = ask(shown("How many circles are there?"), tool_choice="none", **offered).choices[0].message
    assert none.tool_calls is None and none.content == "2", none
    turns = [*shown("Find it."), answer.message.model_dump(exclude_none=True)]
    turns += [{"role": "tool", "tool_call_id": call.id, "content": "left"}, *asked("Where?")]
    assert ask(turns, tool_choice="none", **offered).choices[0].finish_reason == "stop"
    schema = {"type": "object", "properties": {"count": {"enum": [1, 2]}}, "required": ["count"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "count", "schema": schema}}
    either = ask(shown("How many circles are there?"), response_format=form, **offered).choices[0].message
    assert either.tool_calls or json.loads(either.content)["count"] in (1, 2), either
    error = refused(openai.BadRequestError, lambda: ask(shown("Find it."), tool_choice="required"))
    assert error.body["param"] == "tools", error.body


def respond(question, **fields):
    content = [{"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64," + shapes}]
    content += [{"type": "input_text", "text": question}]
    turn = {"role": "user", "content": content}
    return client.responses.create(model=MODEL, input=[turn], **{"temperature": 0, **fields})


def responses_are_answered():
    whole = respond("What is left of the red circle?", metadata={"who": "me"}, instructions="Look well.")
    assert whole.output_text == "a blue circle" and whole.status == "completed" and whole.error is None, whole
    assert whole.metadata == {"who": "me"} and whole.instructions == "Look well." and whole.model == MODEL
    usage = whole.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens and usage.output_tokens_details.reasoning_tokens == 0
    # The client's own types, as strict as they can be.
    type(whole).model_validate(whole.to_dict(), strict=True)
    cut = respond("Describe this image.", max_output_tokens=2)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens"), cut
    schema = {"type": "object", "properties": {"count": {"enum": [2]}}, "required": ["count"], "additionalProperties": False}
    form = {"format": {"type": "json_schema", "name": "count", "schema": schema, "strict": True}}
    assert json.loads(respond("How many circles are there?", text=form).output_text) == {"count": 2}


def responses_are_streamed():
    whole = respond("Describe this image.")
    text, last = "", None
    for number, event in enumerate(respond("Describe this image.", stream=True)):
        type(event).model_validate(event.to_dict(), strict=True)
        assert event.sequence_number == number, event
        text += event.delta if event.type == "response.output_text.delta" else ""
        last = event
    assert last.type == "response.completed" and last.response.output_text == text == whole.output_text
    # The client puts the events together itself, and complains of what does not fit.
    with client.responses.stream(model=MODEL, input="How many?", temperature=0) as stream:
        kinds = [event.type for event in stream]
        assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
        assert stream.get_final_response().status == "completed"
    slow = dict(max_output_tokens=400, extra_body={"timeout_s": 0.05, "ignore_eos": True})
    try:
        kinds = [event.type for event in respond("Describe this image.", stream=True, **slow)]
        assert kinds[-1] in ("response.failed", "response.incomplete"), kinds
    except openai.APIStatusError as error:
        assert error.status_code == 504, error


def responses_call_tools():
    flat = lambda name: {"type": "function", "strict": True, **tool(name)["function"]}
    offered = dict(tools=[flat("find"), flat("paint")], parallel_tool_calls=False)
    named = dict(tool_choice={"type": "function", "name": "paint"}, **offered)
    [call] = respond("Find it.", **named).output
    assert call.type == "function_call" and call.name == "paint" and call.status == "completed", call
    assert json.loads(call.arguments)["colour"] in ("red", "blue")
    events = list(respond("Find it.", stream=True, **named))
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert [one.arguments for one in done] == [call.arguments]
    assert "".join(one.delta for one in events if one.type == "response.function_call_arguments.delta") == call.arguments
    turns = [{"role": "user", "content": "Find it."}, call.to_dict()]
    turns += [{"type": "function_call_output", "call_id": call.call_id, "output": "left"}]
    asked = dict(input=turns, tool_choice="none", max_output_tokens=8, temperature=0)
    again = client.responses.create(model=MODEL, **asked, **offered)
    assert again.output[0].type == "message", again
    for fields, param in [
        (dict(tools=[{"type": "web_search"}]), "tools[0].type"),
        (dict(background=True), "background"),
        (dict(text={"verbosity": "low"}), "text.verbosity"),
        (dict(previous_response_id="resp_none"), "previous_response_id"),
    ]:
        error = refused(openai.BadRequestError, lambda: respond("a", **fields))
        assert error.body["param"] == param, error.body


def responses_tell_how_likely_tokens_were():
    asked = dict(include=["message.output_text.logprobs"], top_logprobs=2)
    whole = respond("What is left of the red circle?", **asked)
    type(whole).model_validate(whole.to_dict(), strict=True)
    [part] = whole.output[0].content
    assert "".join(one.token for one in part.logprobs) == part.text == "a blue circle", part
    assert all(len(one.top_logprobs) == 2 and one.top_logprobs[0].logprob >= one.logprob for one in part.logprobs)
    told = []
    for event in respond("What is left of the red circle?", stream=True, **asked):
        type(event).model_validate(event.to_dict(), strict=True)
        if event.type == "response.output_text.delta":
            told += [(one.token, one.logprob) for one in event.logprobs]
    assert told == [(one.token, one.logprob) for one in part.logprobs], told
    assert respond("How many?").output[0].content[0].logprobs == []
    error = refused(openai.BadRequestError, lambda: respond("a", top_logprobs=2))
    assert error.body["param"] == "top_logprobs", error.body


def responses_tell_what_they_were_asked():
    first = respond("How many circles are there?")
    second = client.responses.create(model=MODEL, input="Where?", temperature=0, previous_response_id=first.id)
    items = list(client.responses.input_items.list(second.id, limit=2, order="asc"))
    assert [item.role for item in items] == ["user", "assistant", "user"], items
    assert [part.type for part in items[0].content] == ["input_image", "input_text"], items
    assert (items[1].content[0].text, items[2].content[0].text) == (first.output_text, "Where?"), items
    latest = client.responses.input_items.list(second.id, limit=1)
    assert latest.has_more and latest.data[0].id == items[2].id, latest


def some_tools_are_allowed():
    offered = dict(tools=[tool("find"), tool("paint"), tool("count")], parallel_tool_calls=False)
    some = lambda *names: [{"type": "function", "function": {"name": name}} for name in names]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": some("paint")}}
    answer = ask(shown("Find it."), tool_choice=choice, **offered).choices[0].message
    assert [call.function.name for call in answer.tool_calls] == ["paint"], answer
    flat = [{"type": "function", **one["function"]} for one in offered["tools"]]
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "count"}]}
    [call] = respond("Find it.", tools=flat, tool_choice=choice, parallel_tool_calls=False).output
    assert call.name == "count", call


def a_last_message_is_gone_on_with():
    turns = shown("What is left of the red circle?")
    begun = turns + [{"role": "assistant", "content": "a blue"}]
    goes_on = dict(continue_final_message=True, add_generation_prompt=False)
    whole = ask(turns)
    rest = ask(begun, extra_body=goes_on)
    assert whole.choices[0].message.content == "a blue circle", whole
    assert rest.choices[0].message.content == " circle", rest
    # The prompt is what was asked and what was said until there.
    assert rest.usage.prompt_tokens == whole.usage.prompt_tokens + 2, rest
    wrong = dict(continue_final_message=True, add_generation_prompt=True)
    assert refused(openai.BadRequestError, lambda: ask(begun, extra_body=wrong)).body["param"] == "continue_final_message"
    refused(openai.BadRequestError, lambda: ask(turns, extra_body=dict(continue_final_message=True)))


def responses_go_on():
    first = respond("How many circles are there?")
    ask = lambda: client.responses.create(model=MODEL, input="Where?", temperature=0, previous_response_id=first.id)
    assert ask().usage.input_tokens > first.usage.input_tokens
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    refused(openai.NotFoundError, lambda: client.responses.retrieve(first.id))
    assert refused(openai.BadRequestError, ask).body["code"] == "previous_response_not_found"
    passing = respond("How many circles are there?", store=False)
    refused(openai.NotFoundError, lambda: client.responses.retrieve(passing.id))


def said(question, **fields):
    source = {"type": "base64", "media_type": "image/png", "data": shapes}
    content = [{"type": "image", "source": source}, {"type": "text", "text": question}]
    return dict(model=MODEL, messages=[{"role": "user", "content": content}], **fields)


def message(question, **fields):
    # Newer clients have no name for it.
    return claude.messages.create(**said(question, **{"max_tokens": 200, **fields}), extra_body={"temperature": 0})


def messages_are_answered():
    whole = message("What is left of the red circle?", system=[{"type": "text", "text": "Look well."}])
    type(whole).model_validate(whole.to_dict(), strict=True)
    assert [block.text for block in whole.content] == ["a blue circle"] and whole.stop_reason == "end_turn", whole
    stopped = message("What is left of the red circle?", stop_sequences=["!", " circle"])
    assert (stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence) == ("a blue", "stop_sequence", " circle")
    assert message("Describe this image.", max_tokens=2).stop_reason == "max_tokens"
    counted = claude.messages.count_tokens(**said("How many?")).input_tokens
    usage = message("How many?").usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens, (counted, usage)
    schema = {"type": "object", "properties": {"count": {"enum": [2]}}, "required": ["count"], "additionalProperties": False}
    form = {"format": {"type": "json_schema", "schema": schema}}
    assert json.loads(message("How many circles are there?", output_config=form).content[0].text) == {"count": 2}


def messages_are_streamed():
    whole = message("Describe this image.")
    events = list(message("Describe this image.", stream=True))
    for event in events:
        type(event).model_validate(event.to_dict(), strict=True)
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"], kinds
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"], kinds
    asked = said("Describe this image.", max_tokens=200)
    with claude.messages.stream(**asked, extra_body={"temperature": 0}) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
        assert stream.get_final_message().usage.output_tokens == whole.usage.output_tokens


def messages_call_tools():
    plain = lambda one: {"name": one["function"]["name"], "input_schema": one["function"]["parameters"]}
    offered = dict(tools=[plain(tool("find")), plain(tool("paint"))])
    named = dict(tool_choice={"type": "tool", "name": "paint", "disable_parallel_tool_use": True}, **offered)
    whole = message("Find it.", **named)
    [call] = whole.content
    assert call.type == "tool_use" and call.name == "paint" and whole.stop_reason == "tool_use", whole
    assert call.input["colour"] in ("red", "blue")
    with claude.messages.stream(**said("Find it.", max_tokens=200, **named), extra_body={"temperature": 0}) as stream:
        assert stream.get_final_message().content[0].input == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "left"}]}
    turns = [{"role": "user", "content": "Find it."}, {"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
    asked = dict(messages=turns, tool_choice={"type": "none"}, **offered)
    again = claude.messages.create(model=MODEL, max_tokens=8, **asked, extra_body={"temperature": 0})
    assert again.content[0].type == "text", again


def messages_are_refused_in_their_words():
    error = refused(anthropic.BadRequestError, lambda: message("a", tools=[{"type": "web_search_20250305", "name": "w"}]))
    assert error.body["error"]["type"] == "invalid_request_error" and "tools[0].type" in str(error), error.body
    turns = [{"role": "user", "content": "a"}]
    error = refused(anthropic.NotFoundError, lambda: claude.messages.create(model="another", max_tokens=1, messages=turns))
    assert error.body["error"]["type"] == "not_found_error", error.body


def drawn(question):
    return [{"role": "user", "content": question, "images": [shapes]}]


def ollamas_clients_are_answered():
    greedy = dict(model=MODEL, options={"temperature": 0})
    answer = llama.chat(messages=drawn("What is left of the red circle?"), **greedy)
    assert answer.done and answer.done_reason == "stop" and answer.message.content == "a blue circle", answer
    assert answer.eval_count > 0 and answer.prompt_eval_count > 0 and answer.total_duration > 0, answer
    parts = list(llama.chat(messages=drawn("What is left of the red circle?"), stream=True, **greedy))
    assert len(parts) > 1 and [part.done for part in parts] == [False] * (len(parts) - 1) + [True], parts
    assert "".join(part.message.content for part in parts) == answer.message.content
    told = llama.generate(prompt="What is left of the red circle?", images=[shapes], **greedy)
    assert told.response == answer.message.content, told
    short = llama.chat(model=MODEL, messages=drawn("Describe this image."), options={"temperature": 0, "num_predict": 2})
    assert short.done_reason == "length" and short.eval_count == 2, short
    kind = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"], "additionalProperties": False}
    held = llama.chat(messages=drawn("Describe this image."), format=kind, **greedy)
    assert json.loads(held.message.content)["colour"] in ("red", "blue"), held


def ollamas_clients_see_what_there_is():
    names = [model.model for model in llama.list().models]
    assert MODEL + ":latest" in names and "letters:latest" in names, names
    assert "vision" in llama.show(MODEL).capabilities and "embedding" in llama.show("letters").capabilities
    assert MODEL + ":latest" in [model.model for model in llama.ps().models]
    texts = ["A man is eating food.", "what?"]
    rows = llama.embed(model="letters", input=texts).embeddings
    listed = client.embeddings.create(model="letters", input=texts, encoding_format="float")
    assert [list(row) for row in rows] == [one.embedding for one in listed.data]
    assert refused(ollama.ResponseError, lambda: llama.pull("another")).status_code == 403
    assert refused(ollama.ResponseError, lambda: llama.chat(model="another", messages=[{"role": "user", "content": "a"}])).status_code == 404


def documents_are_ranked():
    texts = ["a red square is left of it", "two circles", "blue"]
    told = ranker.rerank(model="ranks", query="how many?", documents=texts)
    scores = [one.relevance_score for one in told.results]
    assert sorted(scores, reverse=True) == scores and sorted(one.index for one in told.results) == [0, 1, 2], told
    best = ranker.rerank(model="ranks", query="how many?", documents=texts, top_n=1, max_tokens_per_doc=500)
    assert [(one.index, one.relevance_score) for one in best.results] == [(told.results[0].index, scores[0])], best
    # What is too long is cut, as Cohere does.
    assert len(ranker.rerank(model="ranks", query="how?", documents=["long " * 99]).results) == 1
    older = first_ranker.rerank(model="ranks", query="how many?", documents=[{"text": one} for one in texts], return_documents=True)
    assert [one.document.text for one in older.results] == [texts[one.index] for one in told.results], older
    paired = post("/v1/score", {"model": "ranks", "text_1": "how many?", "text_2": texts})["data"]
    assert [paired[one.index]["score"] for one in told.results] == scores
    for refusal, ask in [
        (cohere.errors.BadRequestError, dict(model="letters", documents=texts)),
        (cohere.errors.BadRequestError, dict(model="ranks", documents=[])),
        (cohere.errors.NotFoundError, dict(model="another", documents=texts)),
    ]:
        refused(refusal, lambda: ranker.rerank(query="how many?", **ask))
    error = refused(openai.BadRequestError, lambda: client.embeddings.create(model="ranks", input="a"))
    assert "/v1/rerank" in error.body["message"], error.body


def texts_are_classified():
    texts = ["two circles", ["how many?", "two circles"]]
    each = [post("/predict", {"model": "labels", "inputs": one}) for one in texts]
    assert post("/predict", {"model": "labels", "inputs": texts}) == each
    for told in each:
        scores = [one["score"] for one in told]
        assert {one["label"] for one in told} == {"LABEL_0", "LABEL_1", "LABEL_2"}, told
        assert scores == sorted(scores, reverse=True) and abs(sum(scores) - 1) < 1e-6, told


def texts_are_embedded():
    embed = lambda texts, **fields: client.embeddings.create(model="letters", input=texts, **fields)
    texts = ["A man is eating food.", "what?"]
    # The client asks for base64 where nothing is said, and turns it back.
    told = embed(texts)
    listed = embed(texts, encoding_format="float")
    # A list has the shortest decimals that are the same single floats.
    single = lambda row: struct.pack(f"<{len(row)}f", *row)
    assert [single(one.embedding) for one in told.data] == [single(one.embedding) for one in listed.data]
    assert [one.index for one in told.data] == [0, 1] and told.model == "letters" and told.object == "list"
    assert all(abs(sum(x * x for x in one.embedding) - 1) < 1e-5 for one in told.data)
    assert embed(texts[1]).data[0].embedding == told.data[1].embedding
    tokens = post("/tokenize", {"model": "letters", "prompt": texts[1]})["tokens"]
    assert embed([tokens]).data[0].embedding == embed(tokens).data[0].embedding == told.data[1].embedding
    assert told.usage.prompt_tokens == told.usage.total_tokens > len(tokens)
    for fields, param in [
        (dict(texts="word " * 50), "input[0]"),
        (dict(texts="a", dimensions=8), "dimensions"),
        (dict(texts=[]), "input"),
    ]:
        error = refused(openai.BadRequestError, lambda: embed(**fields))
        assert error.body["param"] == param, error.body
    long = embed("word " * 50, extra_body={"truncate_prompt_tokens": -1})
    assert long.usage.prompt_tokens == 24
    error = refused(openai.BadRequestError, lambda: client.embeddings.create(model=MODEL, input="a"))
    assert error.body["param"] == "model", error.body
    message = [{"role": "user", "content": "a"}]
    refused(openai.BadRequestError, lambda: client.chat.completions.create(model="letters", messages=message))


def what_is_asked_again_is_cached():
    ask(shown("How many circles are there?"))
    again = ask(shown("How many circles are there?"))
    assert again.choices[0].message.content == "2"
    assert again.usage.prompt_tokens_details.cached_tokens > 0, again.usage


def a_stream_says_the_same():
    whole = ask(shown("Describe this image."))
    stream = ask(shown("Describe this image."), stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content, (text, whole)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in ask(shown("Describe this image."), stream=True))


# Where the model is at a loss, so that a draw decides; it is nearly certain of what it was trained on.
def loose(**fields):
    question = [{"role": "user", "content": "circle 7 of the"}]
    return ask(question, temperature=2, max_tokens=24, extra_body={"ignore_eos": True}, **fields)


def seeds_decide():
    drawn = lambda seed: loose(seed=seed).choices[0].message.content
    assert drawn(1) == drawn(1)
    assert len({drawn(seed) for seed in range(8)}) > 1


def several_answers():
    answer = loose(n=3, seed=5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    one = loose(seed=6).choices[0].message.content
    assert answer.choices[1].message.content == one, "the second answer's seed follows the first's"
    streamed = ["", "", ""]
    for chunk in loose(n=3, seed=5, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == [choice.message.content for choice in answer.choices]


def answers_end_where_they_must():
    text = ask(shown("Describe this image.")).choices[0].message.content
    word = text.split()[2]
    stopped = ask(shown("Describe this image."), stop=[word, "\n\n"]).choices[0]
    assert stopped.message.content == text[: text.index(word)] and stopped.finish_reason == "stop"
    for field in ("max_tokens", "max_completion_tokens"):
        cut = ask(shown("Describe this image."), **{field: 3})
        assert cut.usage.completion_tokens == 3 and cut.choices[0].finish_reason == "length"


def logprobs_are_told():
    answer = ask(shown("How many circles are there?"), logprobs=True, top_logprobs=3)
    tokens = answer.choices[0].logprobs.content
    assert "".join(token.token for token in tokens) == answer.choices[0].message.content
    for token in tokens:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token and bytes(token.bytes).decode() == token.token
    streamed = ask(shown("How many circles are there?"), logprobs=True, top_logprobs=3, stream=True)
    parts = [chunk.choices[0].logprobs for chunk in streamed]
    assert [t.logprob for part in parts if part for t in part.content] == [t.logprob for t in tokens]
    assert ask(shown("How many circles are there?")).choices[0].logprobs is None
    # Parts of characters are told in bytes.
    held = ask([{"role": "user", "content": "Describe this image."}], logprobs=True,
               extra_body={"response_format": {"type": "regex", "regex": "(😀|é){3}"}}).choices[0]
    assert len(held.logprobs.content) > 3
    assert b"".join(bytes(token.bytes) for token in held.logprobs.content).decode() == held.message.content


def tokens_can_be_forbidden():
    answer = ask(shown("How many circles are there?"), logprobs=True).choices[0]
    tokenized = post("/tokenize", {"prompt": answer.logprobs.content[0].token})["tokens"]
    other = ask(shown("How many circles are there?"), logit_bias={str(tokenized[0]): -100})
    assert other.choices[0].message.content != answer.message.content


def conversations_go_on():
    messages = [
        {"role": "system", "content": "You are good at shapes."},
        *shown("How many circles are there?"),
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "What number is written?"},
    ]
    assert ask(messages).choices[0].finish_reason == "stop"
    messages[0]["role"] = "developer"
    assert ask(messages).choices[0].finish_reason == "stop"


def completions():
    whole = client.completions.create(model=MODEL, prompt=["The red", "The blue"], max_tokens=4, temperature=0, n=2)
    assert whole.object == "text_completion" and [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert whole.choices[0].text == whole.choices[1].text
    streamed = [""] * 4
    stream = client.completions.create(
        model=MODEL, prompt=["The red", "The blue"], max_tokens=4, temperature=0, n=2, stream=True
    )
    for part in stream:
        streamed[part.choices[0].index] += part.choices[0].text
    assert streamed == [choice.text for choice in whole.choices]
    echoed = client.completions.create(model=MODEL, prompt="The red", max_tokens=4, temperature=0, echo=True)
    assert echoed.choices[0].text == "The red" + whole.choices[0].text
    tokens = post("/tokenize", {"prompt": "The red"})["tokens"]
    of_tokens = client.completions.create(model=MODEL, prompt=tokens, max_tokens=4, temperature=0, logprobs=2)
    assert of_tokens.choices[0].text == whole.choices[0].text
    told = of_tokens.choices[0].logprobs
    assert len(told.tokens) == 4 and told.text_offset[0] == 0 and all(len(top) == 2 for top in told.top_logprobs)
    # As evaluation harnesses ask how likely a text is: its tokens are as likely as when they were said.
    text = client.completions.create(model=MODEL, prompt=tokens, max_tokens=4, temperature=0).choices[0].text
    all_tokens = tokens + post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
    scored = client.completions.create(model=MODEL, prompt=all_tokens, max_tokens=1, temperature=0, logprobs=2, echo=True)
    prompt = scored.choices[0].logprobs
    assert len(prompt.tokens) == len(all_tokens) + 1 and prompt.token_logprobs[0] is None and prompt.top_logprobs[0] is None
    assert prompt.token_logprobs[len(tokens):-1] == told.token_logprobs, (prompt.token_logprobs, told.token_logprobs)
    batch = client.completions.create(model=MODEL, prompt=[tokens, all_tokens], max_tokens=1, temperature=0, logprobs=1, echo=True)
    short, long = (choice.logprobs for choice in batch.choices)
    assert long.token_logprobs == prompt.token_logprobs and len(short.tokens) == len(tokens) + 1, (long, short)
    # What the model would have said itself is told to be the likeliest, to the bit.
    likeliest = [max(top.values()) for top in long.top_logprobs[len(tokens):]]
    assert likeliest == long.token_logprobs[len(tokens):], (likeliest, long.token_logprobs)
    assert of_tokens.usage.prompt_tokens == len(tokens)


def post(path, body, headers={}):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(base + path, data, {"content-type": "application/json", **headers})
    return json.load(urllib.request.urlopen(request))


def tokens_and_back():
    told = post("/tokenize", {"prompt": "a red circle"})
    assert told["count"] == len(told["tokens"]) > 0
    assert post("/detokenize", {"tokens": told["tokens"]})["prompt"] == "a red circle"
    chat = post("/tokenize", {"messages": shown("How many?")})
    assert chat["count"] == ask(shown("How many?"), max_tokens=1).usage.prompt_tokens


def errors_name_the_field():
    bad = openai.BadRequestError
    message = [{"role": "user", "content": "a"}]
    for fields, param in [
        ({"temperature": 3}, "temperature"),
        ({"n": 0}, "n"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stop": [""]}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"extra_body": {"priority": "mine"}}, "priority"),
    ]:
        error = refused(bad, lambda: ask(message, **fields))
        assert error.body["param"] == param and error.body["type"] == "invalid_request_error", error.body
    cases = [
        ([], "messages"),
        ([{"role": "robot", "content": "a"}], "messages[0].role"),
        ([{"role": "user", "content": [{"type": "smell"}]}], "messages[0].content[0].type"),
        (asked("a", "data:image/png;base64,AAAA"), "messages[0].content[0].image_url.url"),
        (asked("a", "data:text/html;base64,AAAA"), "messages[0].content[0].image_url.url"),
        (asked("a", "data:image/png;base64,????"), "messages[0].content[0].image_url.url"),
        (asked("a", "http://127.0.0.1/a.png"), "messages[0].content[0].image_url.url"),
        (asked("a", "file:///etc/passwd"), "messages[0].content[0].image_url.url"),
        (moving({"type": "video", "video": []}), "messages[0].content[0].video"),
        (moving({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}), "messages[0].content[0].video_url.url"),
    ]
    for messages, param in cases:
        error = refused(bad, lambda: ask(messages))
        assert error.body["param"] == param, (error.body, param)
    error = refused(openai.NotFoundError, lambda: client.chat.completions.create(model="another", messages=message))
    assert error.body["code"] == "model_not_found"
    error = refused(bad, lambda: ask([{"role": "user", "content": "word " * 5000}]))
    assert error.body["code"] == "context_length_exceeded", error.body


def a_request_keeps_its_name():
    raw = client.chat.completions.with_raw_response
    message = [{"role": "user", "content": "a"}]
    named = raw.create(model=MODEL, messages=message, max_tokens=1, extra_headers={"x-request-id": "mine-1"})
    assert named.headers["x-request-id"] == "mine-1" and named.parse().id == "chatcmpl-mine-1"
    assert raw.create(model=MODEL, messages=message, max_tokens=1).headers["x-request-id"]


def a_deadline_breaks_off():
    slow = dict(n=16, max_tokens=400, extra_body={"timeout_s": 0.05, "ignore_eos": True})
    error = refused(openai.APIError, lambda: list(ask(shown("Describe this image."), stream=True, **slow)))
    assert "deadline" in str(error), error


def who_leaves_is_cancelled():
    for leave in (leave_a_stream, leave_early):
        before = metric("smelt_answers_cancelled_total")
        patience = time.monotonic() + 20
        # The demo is fast, so one may leave too late.
        while metric("smelt_answers_cancelled_total") == before:
            assert time.monotonic() < patience, f"{leave.__name__}: a client that left is still answered"
            leave()
            time.sleep(0.02)


def leave_a_stream():
    stream = ask(shown("Describe this image."), stream=True, n=16, max_tokens=400, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()


def leave_early():
    body = {"messages": shown("Describe this image."), "n": 16, "max_tokens": 400, "ignore_eos": True}
    data = json.dumps(body).encode()
    host, port = base.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    # Who is gone before it was read what they ask has asked nothing.
    time.sleep(random.uniform(0, 0.04))
    connection.close()


def many_at_once_say_what_one_says():
    questions = ["How many circles are there?", "What number is written?", "What is left of the red circle?"]
    alone = [ask(shown(question)).choices[0].message.content for question in questions]
    said = {}

    def one(at):
        said[at] = ask(shown(questions[at % 3])).choices[0].message.content

    threads = [threading.Thread(target=one, args=[at]) for at in range(24)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert said == {at: alone[at % 3] for at in range(24)}


def answers_have_the_form_that_is_asked_for():
    form = lambda format: ask(shown("Describe this image."), max_tokens=400, response_format=format).choices[0]
    held = form({"type": "json_object"})
    assert held.finish_reason == "length" or isinstance(json.loads(held.message.content), dict), held
    fields = {"colour": {"enum": ["red", "blue", "green"]}, "count": {"type": "integer", "minimum": 0, "maximum": 9}}
    schema = {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}
    held = form({"type": "json_schema", "json_schema": {"name": "shape", "strict": True, "schema": schema}})
    told = json.loads(held.message.content)
    assert set(told) == set(fields) and told["colour"] in fields["colour"]["enum"] and 0 <= told["count"] <= 9
    assert held.finish_reason == "stop"
    assert form({"type": "grammar", "grammar": 'root ::= "yes" | "no"'}).message.content in ("yes", "no")
    assert form({"type": "regex", "regex": "[0-9]{3}"}).message.content.isdigit()
    for format, param in [
        ({"type": "xml"}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "regex", "regex": "("}, "response_format"),
    ]:
        error = refused(openai.BadRequestError, lambda: form(format))
        assert error.body["param"] == param, error.body


EXPORTS = []


class Collector(BaseHTTPRequestHandler):
    """Keeps what it is sent, as a collector of OpenTelemetry's would."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        EXPORTS.append((self.path, self.headers["Content-Type"], body))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def exported(body):
    """An export as OpenTelemetry's own definition reads it, which refuses fields that it does not know.

    Ids are hexadecimal in OTLP's JSON, unlike all other bytes of protobuf's.
    """

    def binary(value):
        if isinstance(value, list):
            return [binary(one) for one in value]
        if not isinstance(value, dict):
            return value
        ids = ("traceId", "spanId", "parentSpanId")
        hexed = lambda text: base64.b64encode(bytes.fromhex(text)).decode()
        return {key: hexed(one) if key in ids else binary(one) for key, one in value.items()}

    return json_format.ParseDict(binary(json.loads(body)), ExportTraceServiceRequest())


def spans_are_exported():
    server = ThreadingHTTPServer(("127.0.0.1", collector), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    trace, parent = random.randbytes(16), random.randbytes(8)
    context = {"traceparent": f"00-{trace.hex()}-{parent.hex()}-01"}
    # Under a salt of its own nothing of it is known yet.
    ask(shown("What is shown?"), extra_headers=context, extra_body={"cache_salt": trace.hex()})
    spans, until = [], time.monotonic() + 30
    while not any(span.parent_span_id == parent for span in spans):
        assert time.monotonic() < until, [export[:2] for export in EXPORTS]
        time.sleep(0.1)
        requests = [exported(body) for path, kind, body in EXPORTS if (path, kind) == ("/v1/traces", "application/json")]
        assert len(requests) == len(EXPORTS), [export[:2] for export in EXPORTS]
        scopes = [scope for one in requests for resource in one.resource_spans for scope in resource.scope_spans]
        spans = [span for scope in scopes for span in scope.spans if span.trace_id == trace]
    root = next(span for span in spans if span.parent_span_id == parent)
    below = [span for span in spans if span.parent_span_id == root.span_id]
    assert {"vision", "prompt", "decoding"} <= {span.name for span in below}, spans
    for span in below:
        assert len(span.span_id) == 8 and root.start_time_unix_nano <= span.start_time_unix_nano, span
        assert span.start_time_unix_nano <= span.end_time_unix_nano <= root.end_time_unix_nano, span
    server.shutdown()


run([
    models, a_picture_is_seen, clips_are_seen_frame_by_frame, films_are_seen, tools_are_called, responses_are_answered, responses_are_streamed, responses_call_tools, responses_go_on,
    responses_tell_how_likely_tokens_were, responses_tell_what_they_were_asked, some_tools_are_allowed, a_last_message_is_gone_on_with,
    ollamas_clients_are_answered, ollamas_clients_see_what_there_is,
    messages_are_answered, messages_are_streamed, messages_call_tools, messages_are_refused_in_their_words, texts_are_embedded, documents_are_ranked, texts_are_classified, what_is_asked_again_is_cached, a_stream_says_the_same, seeds_decide,
    several_answers, answers_end_where_they_must, logprobs_are_told, tokens_can_be_forbidden,
    conversations_go_on, completions, answers_have_the_form_that_is_asked_for, tokens_and_back, errors_name_the_field, a_request_keeps_its_name,
    a_deadline_breaks_off, spans_are_exported, who_leaves_is_cancelled, many_at_once_say_what_one_says,
])
