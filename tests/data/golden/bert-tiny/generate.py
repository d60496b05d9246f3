"""Makes the tiny BERT checkpoints and their golden vectors.

Run from anywhere: `python generate.py`; it rewrites `checkpoint/` and `cases.safetensors` beside
itself and in `../bert-mlm-tiny`, byte for byte the same with these versions, in a few seconds.

Made with Python 3.11, torch 2.15.0, transformers 5.23.0, safetensors 0.8.0.

Flow: random weights -> what `save_pretrained` of transformers writes -> the numbers of
transformers in float32 with eager attention -> proof that common mistakes would show.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, BertModel

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


if __name__ == "__main__":
    main()
