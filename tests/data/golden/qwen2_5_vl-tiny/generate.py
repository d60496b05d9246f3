"""Makes the tiny Qwen2.5-VL checkpoint and its golden vectors, and checks them.

Run from anywhere: `python generate.py`; it rewrites `checkpoint/`, `nested/`, `cases.safetensors`
and `prompts.json` beside itself, byte for byte the same with these versions, in some seconds.

Made with Python 3.11, torch 2.15.0, transformers 5.23.0, safetensors 0.8.0.

`../qwen3_vl-tiny/generate.py` runs this file with another `FAMILY`.

Flow: random weights under the published names, rounded to BF16 -> the numbers from transformers in
float32, eager attention -> proof that each common mistake would show.
"""

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import torch
from safetensors.torch import save_file
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

HERE = Path(__file__).resolve().parent

IMAGE_TOKEN, VISION_START, VISION_END = 252, 250, 251
SHOWS = 2e-4
"""Least effect of a mistake, as a part of the largest value."""

Weights = dict[str, torch.Tensor]


@dataclass
class Family:
    """What tells the two generators apart."""

    seed: int
    model_class: type
    config_class: type
    config: dict
    """The published form of `config.json`."""
    grids: list[tuple[int, int]]
    """Height and width of pictures in pixels."""
    draw: Callable[["Draw", dict], None]
    to_memory: Callable[[str], str]
    """A published tensor name -> the name in memory."""
    mistakes: dict[str, Callable]
    """What -> a change of the loaded model that a reader could make by mistake."""


class Draw:
    """Random tensors of one seed, rounded to BF16."""

    def __init__(self, seed: int):
        self.random = torch.Generator().manual_seed(seed)
        self.tensors: Weights = {}

    def normal(self, name: str, shape: tuple, std: float, mean: float = 0.0):
        values = mean + std * torch.randn(shape, generator=self.random)
        self.tensors[name] = values.to(torch.bfloat16)

    def linear(self, name: str, rows: int, cols: int, gain: float, bias: float | None):
        self.normal(f"{name}.weight", (rows, cols), gain / math.sqrt(cols))
        if bias is not None:
            self.normal(f"{name}.bias", (rows,), bias)

    def norm(self, name: str, size: int, bias: float | None = None):
        self.normal(f"{name}.weight", (size,), 0.3, mean=1.0)
        if bias is not None:
            self.normal(f"{name}.bias", (size,), bias)


def draw_llm(draw: Draw, text: dict, prefix: str, bias: bool, head_dim: int, qk_norm: bool):
    """The decoder under `prefix`; the head is tied to the embedding, so there is none."""
    hidden, inter = text["hidden_size"], text["intermediate_size"]
    q, kv = text["num_attention_heads"] * head_dim, text["num_key_value_heads"] * head_dim
    qk_bias, v_bias = (0.4, 0.2) if bias else (None, None)
    draw.normal(f"{prefix}.embed_tokens.weight", (text["vocab_size"], hidden), 0.03)
    for index in range(text["num_hidden_layers"]):
        layer = f"{prefix}.layers.{index}"
        draw.linear(f"{layer}.self_attn.q_proj", q, hidden, 1.3, qk_bias)
        draw.linear(f"{layer}.self_attn.k_proj", kv, hidden, 1.3, qk_bias)
        draw.linear(f"{layer}.self_attn.v_proj", kv, hidden, 1.0, v_bias)
        draw.linear(f"{layer}.self_attn.o_proj", hidden, q, 0.06, None)
        if qk_norm:
            draw.norm(f"{layer}.self_attn.q_norm", head_dim)
            draw.norm(f"{layer}.self_attn.k_norm", head_dim)
        draw.linear(f"{layer}.mlp.gate_proj", inter, hidden, 1.2, None)
        draw.linear(f"{layer}.mlp.up_proj", inter, hidden, 1.2, None)
        draw.linear(f"{layer}.mlp.down_proj", hidden, inter, 0.05, None)
        draw.norm(f"{layer}.input_layernorm", hidden)
        draw.norm(f"{layer}.post_attention_layernorm", hidden)
    draw.norm(f"{prefix}.norm", hidden)


def draw_2_5(draw: Draw, config: dict):
    v = config["vision_config"]
    c, inter, patch = v["hidden_size"], v["intermediate_size"], v["patch_size"]
    taps = (v["in_chans"], v["temporal_patch_size"], patch, patch)
    draw.normal("visual.patch_embed.proj.weight", (c, *taps), 0.02 / math.sqrt(math.prod(taps)))
    for index in range(v["depth"]):
        block = f"visual.blocks.{index}"
        draw.norm(f"{block}.norm1", c)
        draw.norm(f"{block}.norm2", c)
        draw.linear(f"{block}.attn.qkv", 3 * c, c, 1.6, 0.4)
        draw.linear(f"{block}.attn.proj", c, c, 0.02, 0.002)
        draw.linear(f"{block}.mlp.gate_proj", inter, c, 1.2, 0.3)
        draw.linear(f"{block}.mlp.up_proj", inter, c, 1.2, 0.3)
        draw.linear(f"{block}.mlp.down_proj", c, inter, 0.02, 0.002)
    wide = c * v["spatial_merge_size"] ** 2
    draw.norm("visual.merger.ln_q", c)
    draw.linear("visual.merger.mlp.0", wide, wide, 1.2, 0.3)
    draw.linear("visual.merger.mlp.2", v["out_hidden_size"], wide, 0.05, 0.01)
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    draw_llm(draw, config, "model", bias=True, head_dim=head_dim, qk_norm=False)


def to_memory_2_5(name: str) -> str:
    if name.startswith("visual."):
        return f"model.{name}"
    return name.replace("model.", "model.language_model.", 1)


CONFIG_2_5 = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
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
    "model_type": "qwen2_5_vl",
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
        "hidden_act": "silu",
        "hidden_size": 32,
        "intermediate_size": 42,
        "num_heads": 2,
        "in_chans": 3,
        "out_hidden_size": 64,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "spatial_patch_size": 4,
        "window_size": 24,
        "fullatt_block_indexes": [1, 3],
        "tokens_per_second": 2,
        "temporal_patch_size": 2,
    },
    "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
    "vocab_size": 256,
}


def sections(model, found: list[int]):
    model.model.language_model.rotary_emb.mrope_section = found


def swap_norms(model):
    block = model.model.visual.blocks[0]
    block.norm1, block.norm2 = block.norm2, block.norm1


def vision_eps(model):
    for module in model.model.visual.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 1e-5
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1e-5


MISTAKES_2_5 = {
    "sections in another order": lambda model: sections(model, [3, 3, 2]),
    "norms of a block swapped": swap_norms,
    "vision epsilon 1e-5": vision_eps,
    "no full attention": lambda model: setattr(model.model.visual, "fullatt_block_indexes", []),
    "full attention in every block": lambda model: setattr(
        model.model.visual, "fullatt_block_indexes", [0, 1, 2, 3]
    ),
    "windows of another size": lambda model: setattr(model.model.visual, "window_size", 16),
    "tanh GELU in the merger": lambda model: setattr(
        model.model.visual.merger.mlp[1], "approximate", "tanh"
    ),
}

FAMILY = Family(
    seed=11,
    model_class=Qwen2_5_VLForConditionalGeneration,
    config_class=Qwen2_5_VLConfig,
    config=CONFIG_2_5,
    # One window exactly; windows cut short on both sides; a picture lower than a window.
    grids=[(24, 24), (40, 56), (16, 32)],
    draw=draw_2_5,
    to_memory=to_memory_2_5,
    mistakes=MISTAKES_2_5,
)


def load(family: Family, weights: Weights):
    config = family.config_class.from_dict(family.config)
    config._attn_implementation = "eager"
    model = family.model_class(config).float().eval()
    state = {family.to_memory(name): tensor.float() for name, tensor in weights.items()}
    lost = model.load_state_dict(state, strict=False)
    assert lost.missing_keys in ([], ["lm_head.weight"]) and not lost.unexpected_keys, lost
    embed = model.get_input_embeddings().weight
    assert model.lm_head.weight.data_ptr() == embed.data_ptr(), "the head is not tied"
    return model


def patches(family: Family, grid: tuple[int, int], index: int) -> torch.Tensor:
    """A picture of waves and noise as the image processor flattens it: [P, C*T*p*p].

    Rows go square by square of the merge; the picture is repeated over T, as for stills.
    """
    v = family.config["vision_config"]
    p, m, t = v["patch_size"], v["spatial_merge_size"], v["temporal_patch_size"]
    random = torch.Generator().manual_seed(1000 * family.seed + index)
    height, width = grid
    y, x = torch.meshgrid(torch.arange(height) / 32, torch.arange(width) / 32, indexing="ij")
    channels = []
    for _ in range(3):
        fx, fy, phase = (torch.rand(3, generator=random) * torch.tensor([9.0, 9.0, 6.3])).tolist()
        noise = torch.randn(height, width, generator=random)
        channels.append(torch.sin(fx * x + fy * y + phase) + 0.4 * noise)
    image = torch.stack(channels).reshape(3, height // p // m, m, p, width // p // m, m, p)
    rows = image.permute(1, 4, 2, 5, 0, 3, 6).unsqueeze(5)
    rows = rows.expand(-1, -1, -1, -1, -1, t, -1, -1)
    return rows.reshape(height * width // p**2, 3 * t * p * p).contiguous()


def grid_thw(family: Family, grids: list[tuple[int, int]]) -> torch.Tensor:
    p = family.config["vision_config"]["patch_size"]
    return torch.tensor([[1, height // p, width // p] for height, width in grids])


def tokens_of(family: Family, grid: tuple[int, int]) -> int:
    v = family.config["vision_config"]
    return grid[0] * grid[1] // (v["patch_size"] * v["spatial_merge_size"]) ** 2


def prompt(family: Family, grids: list[tuple[int, int]], seed: int) -> list[int]:
    """Random text with the pictures' tokens in between."""
    random = torch.Generator().manual_seed(seed)

    def text(count: int) -> list[int]:
        return torch.randint(0, 240, (count,), generator=random).tolist()

    ids = text(4)
    for grid in grids:
        ids += [VISION_START] + [IMAGE_TOKEN] * tokens_of(family, grid) + [VISION_END] + text(3)
    return ids


def positions(model, ids: list[int], family: Family, grids: list[tuple[int, int]]):
    row = torch.tensor([ids])
    kinds = (row == IMAGE_TOKEN).int()
    thw = grid_thw(family, grids) if grids else None
    return model.model.get_rope_index(row, kinds, image_grid_thw=thw)


def vision(model, family: Family, pixels: torch.Tensor, grid: tuple[int, int]) -> Weights:
    with torch.no_grad():
        out = model.model.visual(pixels, grid_thw=grid_thw(family, [grid]))
    outputs = {"image_embeds": out.pooler_output}
    for index, rows in enumerate(getattr(out, "deepstack_features", None) or []):
        outputs[f"deepstack_{index}"] = rows
    return outputs


def cases(model, family: Family) -> Weights:
    """Inputs and outputs of every graph."""
    tensors, towers, all_pixels = {}, [], []
    for index, grid in enumerate(family.grids):
        case = f"vision-{grid[0]}x{grid[1]}"
        pixels = patches(family, grid, index)
        tensors[f"{case}/in/pixel_values"] = pixels
        towers.append(vision(model, family, pixels, grid))
        all_pixels.append(pixels)
        for name, rows in towers[-1].items():
            tensors[f"{case}/out/{name}"] = rows
    # The decoder sees the second and the third picture.
    grids = family.grids[1:]
    ids = torch.tensor([prompt(family, grids, family.seed)])
    place = ids[0] == IMAGE_TOKEN
    embeds = model.get_input_embeddings()(ids).detach().clone()
    embeds[0, place] = torch.cat([tower["image_embeds"] for tower in towers[1:]])
    tensors["llm/in/inputs_embeds"] = embeds
    tensors["llm/in/position_ids"] = positions(model, ids[0].tolist(), family, grids)[0]
    tensors["llm/in/attention_mask"] = torch.ones_like(ids)
    for index in range(len(towers[0]) - 1):
        dense = torch.zeros_like(embeds)
        dense[0, place] = torch.cat([tower[f"deepstack_{index}"] for tower in towers[1:]])
        tensors[f"llm/in/deepstack_embeds.{index}"] = dense
    with torch.no_grad():
        tensors["llm/out/logits"] = model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=torch.cat(all_pixels[1:]),
            image_grid_thw=grid_thw(family, grids),
            mm_token_type_ids=place[None].int(),
            use_cache=False,
        ).logits
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}


def prompts(model, family: Family) -> dict:
    """Prompts with their three-dimensional positions; the first is the one of the `llm` case."""
    kinds = [
        (family.grids[1:], family.seed),
        ([], 1),
        (family.grids[:1], 2),
        ([family.grids[2], family.grids[2], family.grids[0]], 3),
    ]
    out = []
    for grids, seed in kinds:
        ids = prompt(family, grids, seed)
        places, delta = positions(model, ids, family, grids)
        out.append(
            {
                "grids": [list(grid) for grid in grids],
                "ids": ids,
                "position_ids": places[:, 0].tolist(),
                "delta": delta.item(),
            }
        )
    return {"image_token": IMAGE_TOKEN, "prompts": out}


def off(got: torch.Tensor, want: torch.Tensor) -> float:
    """Largest error as a part of the largest wanted value."""
    return ((got.double() - want.double()).abs().max() / want.double().abs().max()).item()


def prove_mistakes_show(family: Family, weights: Weights, right: Weights):
    for what, mistake in family.mistakes.items():
        model = load(family, weights)
        mistake(model)
        wrong = cases(model, family)
        shows = {name: off(wrong[name], right[name]) for name in right if "/out/" in name}
        worst = max(shows, key=shows.get)
        print(f"{what}: {shows[worst]:.1e} ({worst})")
        assert shows[worst] > SHOWS, what


def write(family: Family, here: Path):
    draw = Draw(family.seed)
    family.draw(draw, family.config)
    checkpoint = here / "checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    checkpoint.mkdir()
    save_file(draw.tensors, checkpoint / "model.safetensors", metadata={"format": "pt"})
    (checkpoint / "config.json").write_text(json.dumps(family.config, indent=2) + "\n")
    model = load(family, draw.tensors)
    right = cases(model, family)
    save_file(right, here / "cases.safetensors")
    lines = json.dumps(prompts(model, family)).replace("{\"grids\"", "\n{\"grids\"")
    (here / "prompts.json").write_text(lines + "\n")
    return draw.tensors, model, right


def main(family: Family = FAMILY, here: Path = HERE):
    torch.set_num_threads(1)
    weights, model, right = write(family, here)
    nested = here / "nested"
    shutil.rmtree(nested, ignore_errors=True)
    nested.mkdir()
    saved = model.config.to_dict()
    saved["architectures"] = family.config["architectures"]
    (nested / "config.json").write_text(json.dumps(saved, indent=2, sort_keys=True) + "\n")
    prove_mistakes_show(family, weights, right)
    for name, tensor in right.items():
        print(name, list(tensor.shape), f"std {tensor.float().std().item():.3g}")


if __name__ == "__main__":
    main()
