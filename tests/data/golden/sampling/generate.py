"""Makes `cases.json`: what transformers makes of rows of logits under each setting of a sampler.

Run from anywhere: `python generate.py`; it rewrites the file, byte for byte the same with these
versions.

Made with Python 3.11, torch 2.15.0, transformers 5.23.0 (`pip install torch transformers`).

Flow: random rows and histories -> bias and repetition penalty by transformers, frequency and presence
penalty as OpenAI documents them -> temperature, top-k, top-p, min-p by
transformers -> softmax in double precision -> the same again by plain sorting, which must agree.
"""

import json
import math
import random
from pathlib import Path

import torch
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

HERE = Path(__file__).resolve().parent

NONE = dict(
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    repetition_penalty=1.0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    logit_bias=[],
)

SETTINGS = [
    dict(),
    dict(temperature=0.3),
    dict(temperature=1.7),
    dict(top_k=1),
    dict(top_k=7),
    dict(top_k=5000),
    dict(top_p=0.1),
    dict(top_p=0.8),
    dict(top_p=0.99),
    dict(min_p=0.05),
    dict(min_p=1.0),
    dict(repetition_penalty=1.3),
    dict(repetition_penalty=0.6),
    dict(presence_penalty=1.5),
    dict(presence_penalty=-0.5, frequency_penalty=0.7),
    dict(logit_bias=[[3, 4.5], [8, -100.0]]),
    dict(temperature=0.8, top_k=20, top_p=0.9),
    dict(temperature=1.4, top_p=0.9, min_p=0.1),
    dict(temperature=1.4, top_k=12, top_p=0.7, min_p=0.02),
    dict(
        temperature=0.9,
        top_k=30,
        top_p=0.95,
        min_p=0.01,
        repetition_penalty=1.2,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        logit_bias=[[0, 2.0], [5, -3.0]],
    ),
]

ROWS = [(12, 3.0), (50, 2.0), (200, 1.0)]
"""Tokens of a row, and how far its logits are spread."""


def row(chance: random.Random, tokens: int, spread: float) -> list[float]:
    """Logits with three decimals, all different, so that no cut falls between equal ones."""
    logits = set()
    while len(logits) < tokens:
        logits.add(round(chance.gauss(0, spread), 3))
    logits = sorted(logits)
    chance.shuffle(logits)
    return logits


def adjusted(logits: list[float], prompt: list[int], said: list[int], s: dict) -> torch.Tensor:
    scores = torch.tensor([logits], dtype=torch.float32)
    ids = torch.tensor([prompt + said])
    if s["logit_bias"]:
        scores = SequenceBiasLogitsProcessor([[[t], b] for t, b in s["logit_bias"]])(ids, scores)
    if s["repetition_penalty"] != 1.0:
        scores = RepetitionPenaltyLogitsProcessor(s["repetition_penalty"])(ids, scores)
    for token in set(said):
        scores[0, token] -= s["frequency_penalty"] * said.count(token) + s["presence_penalty"]
    return scores


def probabilities(scores: torch.Tensor, s: dict) -> list[float]:
    if s["temperature"] != 1.0:
        scores = TemperatureLogitsWarper(s["temperature"])(None, scores)
    if s["top_k"] > 0:
        scores = TopKLogitsWarper(s["top_k"])(None, scores)
    if s["top_p"] < 1.0:
        scores = TopPLogitsWarper(s["top_p"])(None, scores)
    if s["min_p"] > 0.0:
        scores = MinPLogitsWarper(s["min_p"])(None, scores)
    return torch.softmax(scores[0].double(), -1).tolist()


def by_definition(scores: list[float], s: dict) -> list[float]:
    """The same by sorting, in doubles."""
    order = sorted(range(len(scores)), key=lambda token: -scores[token])
    order = order[: s["top_k"] or None]
    weights = [math.exp((scores[t] - scores[order[0]]) / s["temperature"]) for t in order]
    total, before, kept = sum(weights), 0.0, []
    for token, weight in zip(order, weights):
        if (s["top_p"] >= 1.0 or before < s["top_p"] * total) and weight >= s["min_p"]:
            kept.append((token, weight))
        before += weight
    out = [0.0] * len(scores)
    for token, weight in kept:
        out[token] = weight / sum(weight for _, weight in kept)
    return out


def case(chance: random.Random, tokens: int, spread: float, own: dict) -> dict:
    s = NONE | own
    logits = row(chance, tokens, spread)
    prompt = [chance.randrange(tokens) for _ in range(6)]
    said = [chance.randrange(min(tokens, 10)) for _ in range(8)]
    scores = adjusted(logits, prompt, said, s)
    greedy = int(scores[0].argmax())
    found = probabilities(scores, s)
    plain = by_definition(scores[0].tolist(), s)
    assert all(abs(a - b) < 1e-6 for a, b in zip(found, plain)), own
    logprobs = torch.log_softmax(torch.tensor(logits, dtype=torch.float64), -1).tolist()
    top = sorted(range(tokens), key=lambda token: -logits[token])[:5]
    return dict(
        settings=own,
        prompt=prompt,
        said=said,
        logits=logits,
        greedy=greedy,
        greedy_logprob=round(logprobs[greedy], 7),
        top_logprobs=[[token, round(logprobs[token], 7)] for token in top],
        probabilities=[[t, round(p, 9)] for t, p in enumerate(found) if p > 0.0],
    )


def main():
    chance = random.Random(20)
    cases = [case(chance, *size, own) for own in SETTINGS for size in ROWS]
    text = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
    (HERE / "cases.json").write_text(f"[\n{text}\n]\n")
    print(f"{len(cases)} cases")


if __name__ == "__main__":
    main()
