"""Makes the tiny Qwen3-VL checkpoint and its golden vectors, and checks them.

Run from anywhere: `python generate.py`.  `../qwen2_5_vl-tiny/generate.py` does the work; versions
and files are named there.

What differs: LayerNorms and a plain MLP in the tower, learned positions resampled to each grid,
deepstack features, a Qwen3 decoder, rotary sections interleaved.
"""

import math
import sys
from pathlib import Path

import torch
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "qwen2_5_vl-tiny"))

import generate  # noqa: E402
from generate import IMAGE_TOKEN, VISION_END, VISION_START, Draw, Family  # noqa: E402

CONFIG = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "image_token_id": IMAGE_TOKEN,
    "model_type": "qwen3_vl",
    "text_config": {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 248,
        "dtype": "bfloat16",
        "eos_token_id": 249,
        "head_dim": 24,
        "hidden_act": "silu",
        "hidden_size": 64,
        "initializer_range": 0.02,
        "intermediate_size": 104,
        "max_position_embeddings": 32768,
        "model_type": "qwen3_vl_text",
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_scaling": {
            "mrope_interleaved": True,
            "mrope_section": [6, 3, 3],
            "rope_type": "default",
        },
        "rope_theta": 5000000,
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": 256,
    },
    "tie_word_embeddings": True,
    "video_token_id": 253,
    "vision_config": {
        "deepstack_visual_indexes": [0, 2],
        "depth": 4,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 32,
        "in_channels": 3,
        "initializer_range": 0.02,
        "intermediate_size": 56,
        "model_type": "qwen3_vl",
        "num_heads": 2,
        "num_position_embeddings": 36,
        "out_hidden_size": 64,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
    "vision_end_token_id": VISION_END,
    "vision_start_token_id": VISION_START,
}


def draw_merger(draw: Draw, name: str, norm: int, wide: int, out: int):
    draw.norm(f"{name}.norm", norm, 0.2)
    draw.linear(f"{name}.linear_fc1", wide, wide, 1.2, 0.3)
    draw.linear(f"{name}.linear_fc2", out, wide, 0.05, 0.01)


def draw_3(draw: Draw, config: dict):
    v, text = config["vision_config"], config["text_config"]
    c, inter, patch = v["hidden_size"], v["intermediate_size"], v["patch_size"]
    visual = "model.visual"
    taps = (v["in_channels"], v["temporal_patch_size"], patch, patch)
    std = 0.02 / math.sqrt(math.prod(taps))
    draw.normal(f"{visual}.patch_embed.proj.weight", (c, *taps), std)
    draw.normal(f"{visual}.patch_embed.proj.bias", (c,), 0.005)
    draw.normal(f"{visual}.pos_embed.weight", (v["num_position_embeddings"], c), 0.02)
    for index in range(v["depth"]):
        block = f"{visual}.blocks.{index}"
        draw.norm(f"{block}.norm1", c, 0.2)
        draw.norm(f"{block}.norm2", c, 0.2)
        draw.linear(f"{block}.attn.qkv", 3 * c, c, 1.6, 0.4)
        draw.linear(f"{block}.attn.proj", c, c, 0.02, 0.002)
        draw.linear(f"{block}.mlp.linear_fc1", inter, c, 1.2, 0.3)
        draw.linear(f"{block}.mlp.linear_fc2", c, inter, 0.02, 0.002)
    wide = c * v["spatial_merge_size"] ** 2
    draw_merger(draw, f"{visual}.merger", c, wide, v["out_hidden_size"])
    for index in range(len(v["deepstack_visual_indexes"])):
        name = f"{visual}.deepstack_merger_list.{index}"
        draw_merger(draw, name, wide, wide, v["out_hidden_size"])
    generate.draw_llm(
        draw,
        text,
        "model.language_model",
        bias=False,
        head_dim=text["head_dim"],
        qk_norm=True,
    )


def not_interleaved(model):
    rotary = model.model.language_model.rotary_emb

    def recompose(freq):
        parts = freq.split(rotary.mrope_section, dim=-1)
        freq = torch.cat([part[i] for i, part in enumerate(parts)], dim=-1)
        return torch.cat((freq, freq), dim=-1)

    rotary.recomposition_frequencies = recompose


def tanh_everywhere(model):
    model.model.visual.merger.act_fn.approximate = "tanh"


def exact_in_blocks(model):
    for block in model.model.visual.blocks:
        block.mlp.act_fn = torch.nn.GELU()


def half_pixels(model):
    model.model.visual.interpolation_align_corners = False


def bicubic(model):
    model.model.visual.interpolation_mode = "bicubic"


def deepstack_swapped(model):
    merger = model.model.visual.deepstack_merger_list
    first, second = merger[0], merger[1]
    merger[0], merger[1] = second, first


MISTAKES = {
    "sections not interleaved": not_interleaved,
    "norms of a block swapped": generate.swap_norms,
    "vision epsilon 1e-5": generate.vision_eps,
    "tanh GELU in the merger": tanh_everywhere,
    "exact GELU in the blocks": exact_in_blocks,
    "positions at half pixels": half_pixels,
    "bicubic positions": bicubic,
    "deepstack mergers swapped": deepstack_swapped,
}

FAMILY = Family(
    seed=23,
    model_class=Qwen3VLForConditionalGeneration,
    config_class=Qwen3VLConfig,
    config=CONFIG,
    # Larger than the learned grid of 6 x 6 patches, equal in height, larger and smaller.
    grids=[(32, 32), (24, 40), (48, 16)],
    draw=draw_3,
    to_memory=lambda name: name,
    mistakes=MISTAKES,
)

if __name__ == "__main__":
    generate.main(FAMILY, HERE)
