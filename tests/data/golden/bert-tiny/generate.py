"""Makes the tiny BERT checkpoints and their golden vectors.

Run from anywhere: `python generate.py`; it rewrites `checkpoint/` and `cases.safetensors` beside
itself, in `../bert-mlm-tiny`, `../bert-rank-tiny` and `../bert-labels-tiny`, byte for byte the same with these
versions, in a few seconds.

Made with Python 3.11, torch 2.15.0, transformers 5.23.0, safetensors 0.8.0.

Flow: random weights -> what `save_pretrained` of transformers writes -> the numbers of
transformers in float32 with eager attention -> proof that common mistakes would show.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    PreTrainedTokenizerFast,
)

HERE = Path(__file__).resolve().parent
SIZES = dict(
    vocab_size=80,
    hidden_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=96,
    max_position_embeddings=32,
    type_vocab_size=2,
    hidden_act="gelu",
    layer_norm_eps=1e-12,
    hidden_dropout_prob=0.1,
    attention_probs_dropout_prob=0.1,
)
SHOWS = 1e-3
"""Least effect of a mistake, as a part of the largest value."""


def fill(model, seed):
    """Weights wide enough that every part counts, embeddings small enough that epsilon does."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in sorted(model.named_parameters()):
        noise = torch.randn(weight.shape, generator=generator)
        with torch.no_grad():
            if "LayerNorm.weight" in name:
                weight.copy_(1 + 0.2 * noise)
            elif "embeddings" in name and "LayerNorm" not in name:
                weight.copy_(0.002 * noise)
            elif name.endswith("bias"):
                weight.copy_(0.1 * noise)
            else:
                weight.copy_(noise / weight.shape[-1] ** 0.5)


def inputs(seed):
    """Four texts of 11, 7, 2 and 1 tokens, padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, SIZES["vocab_size"], (4, 11), generator=generator)
    mask = (torch.arange(11)[None] < torch.tensor([11, 7, 2, 1])[:, None]).long()
    return ids * mask, mask


def run(bert, ids, mask, **other):
    with torch.no_grad():
        return bert(input_ids=ids, attention_mask=mask, **other).last_hidden_state


def check_that_mistakes_show(bert, ids, mask, right):
    seen = mask.bool()

    def apart(found):
        return ((found - right)[seen].abs().max() / right.abs().max()).item()

    config = bert.config
    effects = {
        "no mask": apart(run(bert, ids, torch.ones_like(mask))),
        "token type 1": apart(run(bert, ids, mask, token_type_ids=torch.ones_like(ids))),
        "positions from 1": apart(
            run(bert, ids, mask, position_ids=torch.arange(1, 1 + ids.shape[1])[None])
        ),
    }
    for field, value in [("hidden_act", "gelu_new"), ("layer_norm_eps", 1e-6)]:
        other = BertModel(BertConfig(**{**SIZES, field: value}), add_pooling_layer=False).eval()
        other.set_attn_implementation("eager")
        other.load_state_dict(bert.state_dict(), strict=False)
        effects[f"{field} {value}"] = apart(run(other, ids, mask))
    for mistake, effect in effects.items():
        # GELU's two forms differ by at most 5e-4.
        least = 1e-4 if "gelu_new" in mistake else SHOWS
        assert effect > least, f"{mistake} moves the answer by {effect:.1e} only"
        print(f"  {mistake}: {effect:.1e}")


def save(model, bert, dtype, here, seed):
    directory = here / "checkpoint"
    shutil.rmtree(directory, ignore_errors=True)
    model.to(dtype).save_pretrained(directory)
    model.to(torch.float32)
    ids, mask = inputs(seed)
    out = run(bert, ids, mask)
    check_that_mistakes_show(bert, ids, mask, out)
    cases = {
        "encoder/in/input_ids": ids,
        "encoder/in/attention_mask": mask,
        "encoder/out/last_hidden_state": out.contiguous(),
    }
    save_file(cases, here / "cases.safetensors")
    names = sorted(load_file(directory / "model.safetensors"))
    print(here.name, len(names), names[0], names[-1], json.loads((directory / "config.json").read_text())["architectures"])


def kinds(seed):
    """The second text of two pairs is of kind 1; the others are single texts."""
    ids, mask = inputs(seed)
    second = torch.tensor([6, 4, 2, 1])[:, None]
    return ids, mask, (torch.arange(11)[None] >= second).long() * mask


def save_classifier(labels, dtype, name, seed, **config):
    """With a head of so many labels; its cases are pairs and single texts."""
    model = BertForSequenceClassification(BertConfig(**SIZES, num_labels=labels, **config)).eval()
    model.set_attn_implementation("eager")
    fill(model, seed)
    model.to(dtype).to(torch.float32)
    here = HERE.parent / name
    here.mkdir(exist_ok=True)
    directory = here / "checkpoint"
    shutil.rmtree(directory, ignore_errors=True)
    model.to(dtype).save_pretrained(directory)
    model.to(torch.float32)
    ids, mask, types = kinds(seed + 1)

    def logits(mask, types):
        with torch.no_grad():
            return model(input_ids=ids, attention_mask=mask, token_type_ids=types).logits

    right = logits(mask, types)
    pooled = model.bert.pooler
    mistakes = {"no kinds": logits(mask, types * 0), "no mask": logits(torch.ones_like(mask), types)}
    with torch.no_grad():
        first = model.bert(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state[:, 0]
        mistakes["no tanh"] = model.classifier(pooled.dense(first))
        mistakes["no pooler"] = model.classifier(first)
    for mistake, found in mistakes.items():
        effect = ((found - right).abs().max() / right.abs().max()).item()
        assert effect > SHOWS, f"{mistake} moves the logits by {effect:.1e} only"
        print(f"  {mistake}: {effect:.1e}")
    plain = run(model.bert, ids, mask)
    cases = {
        "classifier/in/input_ids": ids,
        "classifier/in/attention_mask": mask,
        "classifier/in/token_type_ids": types,
        "classifier/out/logits": right.contiguous(),
        "encoder/in/input_ids": ids.clone(),
        "encoder/in/attention_mask": mask.clone(),
        "encoder/out/last_hidden_state": plain.contiguous(),
    }
    save_file(cases, here / "cases.safetensors")
    print(name, right.tolist())
    return model


PAIRS = [
    ("how many?", "two circles"),
    ("how many?", "a red square is left of it"),
    ("", "no question at all"),
    ("how many circles are there in this picture of shapes?", "two"),
    ("two", "how many circles are there in this picture of shapes?"),
    ("how many circles are there in it?", "there are two red circles and a blue square in it"),
]
"""The last three have more tokens than the model takes."""


def save_pairs(model, here):
    """What sentence-transformers' CrossEncoder gives: the tokenizer's own pairs, cut longest first, logits."""
    file = HERE.parent.parent / "encoder/tokenizer.json"
    # What tokenizers of BERT give their models.
    names = ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(file), pad_token="[PAD]", model_input_names=names)
    told = []
    for query, text in PAIRS:
        read = tokenizer(query, text, truncation="longest_first", max_length=32, return_tensors="pt")
        with torch.no_grad():
            score = model(**read).logits.item()
        told.append({"query": query, "text": text, "tokens": read["input_ids"].shape[1], "score": score})
    (here / "pairs.json").write_text(json.dumps(told, indent=1) + "\n")


def main():
    torch.set_num_threads(1)
    plain = BertModel(BertConfig(**SIZES)).eval()
    plain.set_attn_implementation("eager")
    fill(plain, 1)
    save(plain, plain, torch.float32, HERE, 2)
    # Heads come with a prefix and are nothing of the encoder's; F16 on disk.
    masked = BertForMaskedLM(BertConfig(**SIZES)).eval()
    masked.set_attn_implementation("eager")
    fill(masked, 3)
    masked.to(torch.float16).to(torch.float32)
    here = HERE.parent / "bert-mlm-tiny"
    here.mkdir(exist_ok=True)
    save(masked, masked.bert, torch.float16, here, 4)
    # A cross-encoder as sentence-transformers keeps it, and a classifier of three labels.
    identity = {"activation_fn": "torch.nn.modules.linear.Identity"}
    ranks = save_classifier(1, torch.float32, "bert-rank-tiny", 5, sentence_transformers=identity)
    save_pairs(ranks, HERE.parent / "bert-rank-tiny")
    save_classifier(3, torch.float16, "bert-labels-tiny", 7)


if __name__ == "__main__":
    main()
