"""Makes the tiny Qwen2-VL checkpoint and its golden vectors, and checks them.

Run from anywhere: `python generate.py`.  `../qwen2_5_vl-tiny/generate.py` does the work, and `answers.py` beside it the
answers; versions and files are named there.

What differs: LayerNorms, a plain MLP with the quick GELU and attention over the whole picture in the tower; steps of a
clip lie one position apart, whatever the seconds between them.
"""

import json
import math
import sys
from pathlib import Path

import torch
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "qwen2_5_vl-tiny"))

import generate  # noqa: E402
from generate import IMAGE_TOKEN, VISION_END, VISION_START, Draw, Family  # noqa: E402

CONFIG = {
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "attention_dropout": 0.0,
    "bos_token_id": 248,
    "eos_token_id": 249,
    "vision_start_token_id": VISION_START,
    "vision_end_token_id": VISION_END,
    "vision_token_id": 254,
    "image_token_id": IMAGE_TOKEN,
    "video_token_id": 253,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 104,
    "max_position_embeddings": 32768,
    "max_window_layers": 3,
    "model_type": "qwen2_vl",
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vision_config": {
        "depth": 4,
        "embed_dim": 32,
        "mlp_ratio": 2,
        "num_heads": 2,
        "in_chans": 3,
        "hidden_size": 64,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "spatial_patch_size": 4,
        "temporal_patch_size": 2,
    },
    "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
    "vocab_size": 256,
}


def draw_2(draw: Draw, config: dict):
    v = config["vision_config"]
    c, patch = v["embed_dim"], v["patch_size"]
    inter = c * v["mlp_ratio"]
    taps = (v["in_chans"], v["temporal_patch_size"], patch, patch)
    draw.normal("visual.patch_embed.proj.weight", (c, *taps), 0.02 / math.sqrt(math.prod(taps)))
    for index in range(v["depth"]):
        block = f"visual.blocks.{index}"
        draw.norm(f"{block}.norm1", c, 0.2)
        draw.norm(f"{block}.norm2", c, 0.2)
        draw.linear(f"{block}.attn.qkv", 3 * c, c, 1.6, 0.4)
        draw.linear(f"{block}.attn.proj", c, c, 0.02, 0.002)
        draw.linear(f"{block}.mlp.fc1", inter, c, 1.2, 0.3)
        draw.linear(f"{block}.mlp.fc2", c, inter, 0.02, 0.002)
    wide = c * v["spatial_merge_size"] ** 2
    draw.norm("visual.merger.ln_q", c, 0.2)
    draw.linear("visual.merger.mlp.0", wide, wide, 1.2, 0.3)
    draw.linear("visual.merger.mlp.2", v["hidden_size"], wide, 0.05, 0.01)
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    generate.draw_llm(draw, config, "model", bias=True, head_dim=head_dim, qk_norm=False)


def other_gelu(model):
    for block in model.model.visual.blocks:
        block.mlp.act = torch.nn.GELU()


def quick_in_the_merger(model):
    model.model.visual.merger.mlp[1].forward = lambda x: x * torch.sigmoid(1.702 * x)


MISTAKES = {
    "sections in another order": lambda model: generate.sections(model, [3, 3, 2]),
    "norms of a block swapped": generate.swap_norms,
    "vision epsilon 1e-5": generate.vision_eps,
    "exact GELU in the blocks": other_gelu,
    "quick GELU in the merger": quick_in_the_merger,
}

FAMILY = Family(
    seed=53,
    model_class=Qwen2VLForConditionalGeneration,
    config_class=Qwen2VLConfig,
    config=CONFIG,
    grids=[(24, 24), (40, 56), (16, 32)],
    draw=draw_2,
    to_memory=generate.to_memory_2_5,
    mistakes=MISTAKES,
)


def clips(model) -> list[dict]:
    """Prompts with a clip, and their positions; a step is a place further than the one before."""
    found = []
    for steps, rows, columns in [(1, 4, 6), (3, 4, 6), (4, 2, 8), (7, 6, 4)]:
        ids = [7, 8, 9, VISION_START] + [253] * (steps * rows * columns // 4) + [VISION_END, 5, 6]
        row = torch.tensor([ids])
        places, delta = model.model.get_rope_index(
            row, (row == 253).int() * 2, video_grid_thw=torch.tensor([[steps, rows, columns]])
        )
        found.append({
            "grid": [steps, rows, columns], "interval": 1.0, "ids": ids,
            "position_ids": places[:, 0].tolist(), "delta": delta.item(),
        })
    return found


def answered(answers, model) -> list[dict]:
    """As `answers.py` beside the other generator has it; no seconds are told of the clip."""
    mean, std = answers.processors.CLIP_MEAN, answers.processors.CLIP_STD
    found = [
        answers.pictures(model, mean, std, ["shapes-100x60"]),
        answers.pictures(model, mean, std, ["grey-tower-37x150", "lettering-300x80"]),
    ]
    rows, grid = answers.clip("lettering-300x80", 5, mean, std)
    ids = [7, VISION_START] + [253] * answers.tokens_of(grid) + [VISION_END, 100]
    said = answers.greedy(
        model, ids, [2 * int(token == 253) for token in ids], pixel_values_videos=rows,
        video_grid_thw=torch.tensor([grid]),
    )
    ids = [IMAGE_TOKEN if token == 253 else token for token in ids]
    clip = {"clip": "lettering-300x80.png", "frames": 5, "fps": answers.FPS, "sizes": [[grid[1] * 4, grid[2] * 4]]}
    return found + [clip | {"ids": ids} | said]


def main():
    generate.main(FAMILY, HERE)
    import answers
    from safetensors.torch import load_file

    model = generate.load(FAMILY, load_file(HERE / "checkpoint/model.safetensors"))
    for name, rows in [("clips", clips(model)), ("answers", answered(answers, model))]:
        lines = ",\n".join(json.dumps(row) for row in rows)
        (HERE / f"{name}.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
