#!/usr/bin/python3
"""Stands in for llm_inference of TensorRT Edge-LLM 0.6 to 0.11, where there is no such board: a specification that can be run.

It takes what the real one takes and refuses what that refuses.  Each rule names where it is read: a function of
examples/llm/llm_inference.cpp.  It proves that smelt asks rightly and reads answers rightly; it proves nothing of an engine.

The engine's directory holds a file `mode` with one word: how the engine answers, or how the program goes wrong.
"""

import getopt
import json
import os
import sys
import time

# parseLLMInferenceArgs.
OPTIONS = ["help", "inputFile=", "engineDir=", "multimodalEngineDir=", "outputFile=", "debug", "dumpProfile",
           "profileOutputFile=", "warmup=", "dumpOutput", "batchSize=", "maxGenerateLength="]


def fail(*lines):
    for line in lines:
        print(f"[ERROR] {line}", file=sys.stderr, flush=True)
    sys.exit(1)


try:
    given, rest = getopt.gnu_getopt(sys.argv[1:], "", OPTIONS)
except getopt.GetoptError as error:
    fail(str(error))
given = dict(given)
for name in ["--inputFile", "--engineDir", "--outputFile"]:
    if not given.get(name):
        fail(f"ERROR: {name} is required")

# parseInputFile.
try:
    asked = json.load(open(given["--inputFile"]))
except OSError:
    fail(f"Failed to open input file: {given['--inputFile']}")
except ValueError as error:
    fail(f"Failed to parse input file with error: {error}")
if asked.get("batch_size", 1) <= 0:
    fail(f"Invalid batch_size value: {asked['batch_size']} (must be positive)")
if asked.get("max_generate_length", 256) <= 0:
    fail(f"Invalid max_generate_length value: {asked['max_generate_length']} (must be positive)")
if not isinstance(asked.get("requests"), list):
    fail("'requests' array not found in input file")
for request in asked["requests"]:
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        fail("Each request must have a non-empty 'messages' array")
    for message in messages:
        if "role" not in message or "content" not in message:
            fail("Each message must have 'role' and 'content' fields")
        content = message["content"]
        for part in content if isinstance(content, list) else []:
            if part["type"] == "image" and not os.path.isfile(part["image"]):
                fail(f"Failed to load image: {part['image']}")
            if part["type"] not in ("text", "image", "video"):
                fail(f"Content type must be 'text', 'image', or 'video', but got: {part['type']}")

engine = given["--engineDir"]
if not os.path.isfile(os.path.join(engine, "llm.engine")):
    fail("Failed to initialize LLM Inference Runtime")
mode = open(os.path.join(engine, "mode")).read().strip()
KNOWN = {"What is 2 + 2?": "4", "What is the capital of France?": "Paris", "What is on the table?": "a cup"}


def said(request):
    content = request["messages"][-1]["content"]
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    return "!!!!!!!!" if mode == "half-built" else KNOWN.get(text, "?")


if mode == "hangs":
    time.sleep(600)
if mode == "silent":
    sys.exit(0)
responses = [
    {"output_text": said(request), "request_idx": number, "batch_idx": 0, "messages": request["messages"]}
    for number, request in enumerate(asked["requests"])
]
# main: a request that failed has the complaint as its text, and the program ends with 1.
failed = mode == "one-fails"
if failed:
    responses[0]["output_text"] = "TensorRT Edge LLM cannot handle this request."
if mode == "one-lacks":
    responses.pop()
text = json.dumps({"input_file": given["--inputFile"], "responses": responses}, indent=4)
if mode == "cut":
    text = text[: len(text) // 2]
if mode == "endless":
    text += " " * (17 << 20)
with open(given["--outputFile"], "w") as file:
    file.write(text)
if mode == "noise":
    sys.stdout.write("x" * (4 << 20))
sys.exit(1 if failed or mode == "fails-after" else 0)
