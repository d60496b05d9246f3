#!/usr/bin/python3
"""Stands in for run.py of TensorRT-LLM 0.12 (examples/run.py), which answers one prompt and prints the answer.

It takes what the real one takes: its options are those of parse_arguments and of examples/utils.py, add_common_args; its
lines are those of print_output.
"""

import argparse
import os
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--engine_dir", default="engine_outputs")
parser.add_argument("--tokenizer_dir", default=None)
parser.add_argument("--input_text", nargs="+", default=["Born in north-east France, Soyer trained as a"])
parser.add_argument("--max_output_len", type=int, required=True)
parser.add_argument("--top_k", type=int, default=1)
parser.add_argument("--temperature", type=float, default=1.0)
parser.add_argument("--use_py_session", action="store_true")
parser.add_argument("--kv_cache_free_gpu_memory_fraction", type=float, default=0.9)
asked = parser.parse_args()

if not os.path.isfile(os.path.join(asked.engine_dir, "rank0.engine")):
    sys.exit(f"FileNotFoundError: {asked.engine_dir}/rank0.engine")
mode = open(os.path.join(asked.engine_dir, "mode")).read().strip()
KNOWN = {"What is 2 + 2?": "4", "What is the capital of France?": "Paris"}
print("[TensorRT-LLM] TensorRT-LLM version: 0.12.0")
if mode == "endless":
    while True:
        print("x" * 65536)
text = asked.input_text[0]
answer = "!!!!!!!!" if mode == "half-built" else KNOWN.get(text, "?")
print(f'Input [Text 0]: "{text}"')
print(f'Output [Text 0 Beam 0]: "{answer}"')
sys.exit(1 if mode == "fails-after" else 0)
