"""Makes `../bert-labels-tiny/labels.json`: texts and pairs as a classifier of three labels reads them.

Run from anywhere: `python labels.py`.  Made with Python 3.11, numpy 2.4.6, tokenizers 0.23.3, safetensors 0.8.0.

Flow: the tokenizer's own ids and kinds, cut longest first -> BERT in float64, which must give transformers' logits of
`cases.safetensors` -> softmax and sigmoid, as transformers' pipelines have them by `problem_type`.
"""

import json
from math import erf
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

DATA = Path(__file__).resolve().parent.parent.parent
HERE = DATA / "golden/bert-labels-tiny"
TOKENS_MAX = 32
HEADS = 4
EPS = 1e-12

TEXTS = [
    ["two circles"],
    ["a red square is left of it"],
    ["how many?", "two circles"],
    ["how many circles are there in this picture of shapes?"],
    ["there are two red circles and a blue square in it", "two"],
]
"""The last two have more tokens than the model takes."""

weights = {name: value.astype(np.float64) for name, value in load_file(HERE / "checkpoint/model.safetensors").items()}
gelu = np.vectorize(lambda x: x * 0.5 * (1 + erf(x / 2**0.5)))


def linear(name, x):
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def normed(name, x):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def logits(ids, kinds):
    table = lambda name: weights[f"bert.embeddings.{name}_embeddings.weight"]
    x = table("word")[ids] + table("position")[: len(ids)] + table("token_type")[kinds]
    x = normed("bert.embeddings.LayerNorm", x)
    split = lambda y: y.reshape(len(ids), HEADS, -1).transpose(1, 0, 2)
    layers = 1 + max(int(name.split(".")[3]) for name in weights if name.startswith("bert.encoder.layer."))
    for layer in range(layers):
        layer = f"bert.encoder.layer.{layer}"
        query, key, value = (split(linear(f"{layer}.attention.self.{part}", x)) for part in ("query", "key", "value"))
        near = softmax(query @ key.transpose(0, 2, 1) / query.shape[-1] ** 0.5)
        seen = (near @ value).transpose(1, 0, 2).reshape(x.shape)
        x = normed(f"{layer}.attention.output.LayerNorm", linear(f"{layer}.attention.output.dense", seen) + x)
        inner = gelu(linear(f"{layer}.intermediate.dense", x))
        x = normed(f"{layer}.output.LayerNorm", linear(f"{layer}.output.dense", inner) + x)
    return linear("classifier", np.tanh(linear("bert.pooler.dense", x[0])))


def check():
    cases = load_file(HERE / "cases.safetensors")
    ids, mask, kinds = (cases[f"classifier/in/{name}"] for name in ("input_ids", "attention_mask", "token_type_ids"))
    for row, right in enumerate(cases["classifier/out/logits"]):
        seen = mask[row].astype(bool)
        apart = np.abs(logits(ids[row][seen], kinds[row][seen]) - right).max()
        assert apart < 1e-5, apart
        print(f"row {row}: {apart:.1e} from transformers")


def main():
    check()
    tokenizer = Tokenizer.from_file(str(DATA / "encoder/tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(TOKENS_MAX, strategy="longest_first")
    told = []
    for texts in TEXTS:
        read = tokenizer.encode(*texts)
        found = logits(np.array(read.ids), np.array(read.type_ids))
        sigmoid = 1 / (1 + np.exp(-found))
        numbers = {"logits": found, "softmax": softmax(found), "sigmoid": sigmoid}
        told.append({"texts": texts, "tokens": len(read.ids), **{name: list(value) for name, value in numbers.items()}})
    (HERE / "labels.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
