"""Makes a tiny InternVL3 whose tower is of the InternViT-6B kind, and its golden vectors.

Run from anywhere: `python generate.py`; it rewrites `checkpoint/`, `hf/` and `cases.safetensors`
beside itself, byte for byte the same with these versions.

Made with Python 3.11, torch 2.15.0, transformers 5.23.0, safetensors 0.8.0.

That tower (38B, 78B) has RMSNorms in its layers, RMSNorms of q and k over the whole hidden row
before the heads are cut, and no bias on q, k, v.  transformers has no class for the original
layout, so the numbers come from its own (`-hf`) one, and a float64 forward written from the
original remote code (with the pieces of `../internvl3-tiny/plain_forward.py`) must agree.
"""

import json
import math
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import InternVLConfig, InternVLForConditionalGeneration

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "internvl3-tiny"))

import plain_forward  # noqa: E402
from plain_forward import attend, gelu, layer_norm, linear, rms_norm, shuffle  # noqa: E402

SEED = 31
AGREEMENT = 1e-5
"""Largest error of the float32 numbers, as a part of the largest value."""
SHOWS = 2e-4
"""Least effect of a mistake, as a part of the largest value."""

VISION = dict(hidden=48, layers=3, heads=3, inter=80, image=56, patch=14, eps=1e-6)
LLM = dict(hidden=32, layers=1, heads=2, kv_heads=1, head_dim=16, inter=48, vocab=64)
TILES = 2

Weights = dict[str, torch.Tensor]


def config() -> dict:
    """The fields of the published InternVL3-38B configuration that tell anything."""
    return {
        "architectures": ["InternVLChatModel"],
        "downsample_ratio": 0.5,
        "dynamic_image_size": True,
        "force_image_size": VISION["image"],
        "llm_config": {
            "architectures": ["Qwen2ForCausalLM"],
            "hidden_act": "silu",
            "hidden_size": LLM["hidden"],
            "intermediate_size": LLM["inter"],
            "max_position_embeddings": 32768,
            "model_type": "qwen2",
            "num_attention_heads": LLM["heads"],
            "num_hidden_layers": LLM["layers"],
            "num_key_value_heads": LLM["kv_heads"],
            "rms_norm_eps": 1e-6,
            "rope_scaling": None,
            "rope_theta": 1000000.0,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "use_sliding_window": False,
            "vocab_size": LLM["vocab"],
        },
        "max_dynamic_patch": 12,
        "min_dynamic_patch": 1,
        "model_type": "internvl_chat",
        "ps_version": "v2",
        "select_layer": -1,
        "template": "internvl2_5",
        "torch_dtype": "bfloat16",
        "use_thumbnail": True,
        "vision_config": {
            "architectures": ["InternVisionModel"],
            "hidden_act": "gelu",
            "hidden_size": VISION["hidden"],
            "image_size": VISION["image"],
            "intermediate_size": VISION["inter"],
            "layer_norm_eps": VISION["eps"],
            "model_type": "intern_vit_6b",
            "norm_type": "rms_norm",
            "num_attention_heads": VISION["heads"],
            "num_channels": 3,
            "num_hidden_layers": VISION["layers"],
            "patch_size": VISION["patch"],
            "qk_normalization": True,
            "qkv_bias": False,
            "torch_dtype": "bfloat16",
            "use_flash_attn": True,
        },
    }


class Draw:
    """Random tensors of one seed, rounded to BF16."""

    def __init__(self):
        self.random = torch.Generator().manual_seed(SEED)
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


def draw_vision(draw: Draw):
    c, inter, patch = VISION["hidden"], VISION["inter"], VISION["patch"]
    embeddings = "vision_model.embeddings"
    draw.normal(f"{embeddings}.class_embedding", (1, 1, c), 0.01)
    patch_std = 0.02 / math.sqrt(3 * patch**2)
    draw.normal(f"{embeddings}.patch_embedding.weight", (c, 3, patch, patch), patch_std)
    draw.normal(f"{embeddings}.patch_embedding.bias", (c,), 0.005)
    positions = (VISION["image"] // patch) ** 2 + 1
    draw.normal(f"{embeddings}.position_embedding", (1, positions, c), 0.01)
    for index in range(VISION["layers"]):
        layer = f"vision_model.encoder.layers.{index}"
        # Quiet queries and keys, so that the epsilon of their norms shows.
        draw.linear(f"{layer}.attn.qkv", 3 * c, c, 0.02, None)
        draw.norm(f"{layer}.attn.q_norm", c)
        draw.norm(f"{layer}.attn.k_norm", c)
        draw.linear(f"{layer}.attn.proj", c, c, 30.0, 0.1)
        draw.normal(f"{layer}.ls1", (c,), 0.005, mean=0.02)
        draw.normal(f"{layer}.ls2", (c,), 0.005, mean=0.015)
        draw.linear(f"{layer}.mlp.fc1", inter, c, 1.2, 0.3)
        draw.linear(f"{layer}.mlp.fc2", c, inter, 1.2, 0.1)
        draw.norm(f"{layer}.norm1", c)
        draw.norm(f"{layer}.norm2", c)
    draw.norm("mlp1.0", 4 * c, 0.2)
    draw.linear("mlp1.1", LLM["hidden"], 4 * c, 1.2, 0.3)
    draw.linear("mlp1.3", LLM["hidden"], LLM["hidden"], 0.05, 0.01)


def draw_llm(draw: Draw):
    hidden, inter = LLM["hidden"], LLM["inter"]
    q, kv = LLM["heads"] * LLM["head_dim"], LLM["kv_heads"] * LLM["head_dim"]
    draw.normal("language_model.model.embed_tokens.weight", (LLM["vocab"], hidden), 0.03)
    for index in range(LLM["layers"]):
        layer = f"language_model.model.layers.{index}"
        draw.linear(f"{layer}.self_attn.q_proj", q, hidden, 1.3, 0.4)
        draw.linear(f"{layer}.self_attn.k_proj", kv, hidden, 1.3, 0.4)
        draw.linear(f"{layer}.self_attn.v_proj", kv, hidden, 1.0, 0.2)
        draw.linear(f"{layer}.self_attn.o_proj", hidden, q, 0.06, None)
        draw.linear(f"{layer}.mlp.gate_proj", inter, hidden, 1.2, None)
        draw.linear(f"{layer}.mlp.up_proj", inter, hidden, 1.2, None)
        draw.linear(f"{layer}.mlp.down_proj", hidden, inter, 0.05, None)
        draw.norm(f"{layer}.input_layernorm", hidden)
        draw.norm(f"{layer}.post_attention_layernorm", hidden)
    draw.norm("language_model.model.norm", hidden)
    draw.linear("language_model.lm_head", LLM["vocab"], hidden, 4.0, None)


def to_transformers(weights: Weights) -> Weights:
    """Original names -> transformers 5 in-memory names, qkv split in three, widened to float32."""
    renames = [
        (".class_embedding", ".cls_token"),
        (".position_embedding", ".position_embeddings"),
        (".patch_embedding", ".patch_embeddings.projection"),
        ("vision_model.embeddings", "model.vision_tower.embeddings"),
        ("vision_model.encoder.layers", "model.vision_tower.encoder.layer"),
        (".attn.proj", ".attention.projection_layer"),
        (".attn.q_norm", ".attention.q_norm"),
        (".attn.k_norm", ".attention.k_norm"),
        (".norm1", ".layernorm_before"),
        (".norm2", ".layernorm_after"),
        (".ls1", ".lambda_1"),
        (".ls2", ".lambda_2"),
        ("mlp1.0", "model.multi_modal_projector.layer_norm"),
        ("mlp1.1", "model.multi_modal_projector.linear_1"),
        ("mlp1.3", "model.multi_modal_projector.linear_2"),
        ("language_model.lm_head", "lm_head"),
        ("language_model.model", "model.language_model"),
    ]
    out = {}
    for name, tensor in weights.items():
        for old, new in renames:
            name = name.replace(old, new)
        if ".attn.qkv" in name:
            for part, rows in zip("qkv", tensor.float().chunk(3)):
                out[name.replace(".attn.qkv", f".attention.{part}_proj")] = rows.clone()
        else:
            out[name] = tensor.float()
    return out


def transformers_model(original: dict, weights: Weights):
    vision, llm = original["vision_config"], original["llm_config"]
    hf_config = InternVLConfig(
        architectures=["InternVLForConditionalGeneration"],
        vision_config=dict(
            hidden_size=vision["hidden_size"],
            num_hidden_layers=vision["num_hidden_layers"],
            num_attention_heads=vision["num_attention_heads"],
            intermediate_size=vision["intermediate_size"],
            image_size=vision["image_size"],
            patch_size=vision["patch_size"],
            num_channels=vision["num_channels"],
            layer_norm_eps=vision["layer_norm_eps"],
            norm_type=vision["norm_type"],
            hidden_act=vision["hidden_act"],
            attention_bias=vision["qkv_bias"],
            use_qk_norm=vision["qk_normalization"],
        ),
        text_config=dict(
            architectures=llm["architectures"],
            model_type=llm["model_type"],
            hidden_size=llm["hidden_size"],
            num_hidden_layers=llm["num_hidden_layers"],
            num_attention_heads=llm["num_attention_heads"],
            num_key_value_heads=llm["num_key_value_heads"],
            intermediate_size=llm["intermediate_size"],
            vocab_size=llm["vocab_size"],
            rms_norm_eps=llm["rms_norm_eps"],
            max_position_embeddings=llm["max_position_embeddings"],
            hidden_act=llm["hidden_act"],
            rope_parameters={"rope_theta": llm["rope_theta"], "rope_type": "default"},
            tie_word_embeddings=False,
        ),
        downsample_ratio=original["downsample_ratio"],
        vision_feature_layer=original["select_layer"],
        image_token_id=LLM["vocab"] - 1,
        image_seq_length=4,
        tie_word_embeddings=False,
        attn_implementation="eager",
    )
    model = InternVLForConditionalGeneration(hf_config).float().eval()
    model.load_state_dict(to_transformers(weights), strict=True)
    return model


def plain_attention(w: Weights, layer: str, x: torch.Tensor, mistake: str) -> torch.Tensor:
    """`InternAttention` of `modeling_intern_vit.py` with `qk_normalization`."""
    channels, heads = VISION["hidden"], VISION["heads"]
    dim = channels // heads
    q, k, v = linear(w, f"{layer}.attn.qkv", x).chunk(3, -1)
    eps = 1e-5 if mistake == "q and k epsilon 1e-5" else VISION["eps"]
    if mistake == "q and k normed head by head":
        norm = lambda name, rows: torch.cat(
            [
                head / ((head * head).mean(-1, keepdim=True) + eps).sqrt()
                for head in rows.chunk(heads, -1)
            ],
            -1,
        ) * w[f"{layer}.attn.{name}.weight"]
    else:
        norm = lambda name, rows: rms_norm(w, f"{layer}.attn.{name}", rows, eps)
    # Exchanging the two weights would not show: scores only see their product.
    if mistake != "q not normed":
        q = norm("q_norm", q)
    if mistake != "k not normed":
        k = norm("k_norm", k)
    rows = [part.split(dim, -1) for part in (q, k, v)]
    out = [attend(*head, False) for head in zip(*rows)]
    return linear(w, f"{layer}.attn.proj", torch.cat(out, -1))


def plain_norm(w: Weights, name: str, x: torch.Tensor, mistake: str) -> torch.Tensor:
    eps = 1e-5 if mistake == "norm epsilon 1e-5" else VISION["eps"]
    if mistake == "norms that centre":
        x = x - x.mean(-1, keepdim=True)
    return rms_norm(w, name, x, eps)


def plain_tile(w: Weights, tile: torch.Tensor, mistake: str = "") -> torch.Tensor:
    """tile [3, S, S] -> [tokens, H]: `InternVisionModel`, pixel shuffle, `mlp1`."""
    embeddings = "vision_model.embeddings"
    rows = plain_forward.patches(w, tile, VISION["patch"])
    x = torch.cat([w[f"{embeddings}.class_embedding"][0], rows])
    x = x + w[f"{embeddings}.position_embedding"][0]
    for index in range(VISION["layers"]):
        layer = f"vision_model.encoder.layers.{index}"
        normed = plain_norm(w, f"{layer}.norm1", x, mistake)
        x = x + w[f"{layer}.ls1"] * plain_attention(w, layer, normed, mistake)
        wide = linear(w, f"{layer}.mlp.fc1", plain_norm(w, f"{layer}.norm2", x, mistake))
        x = x + w[f"{layer}.ls2"] * linear(w, f"{layer}.mlp.fc2", gelu(wide, "none"))
    side = VISION["image"] // VISION["patch"]
    x = shuffle(x[1:].reshape(side, side, -1), "v2")
    x = linear(w, "mlp1.1", layer_norm(w, "mlp1.0", x, 1e-5))
    return linear(w, "mlp1.3", gelu(x, "none"))


MISTAKES = [
    "q not normed",
    "k not normed",
    "q and k normed head by head",
    "q and k epsilon 1e-5",
    "norm epsilon 1e-5",
    "norms that centre",
]


def off(got: torch.Tensor, want: torch.Tensor) -> float:
    """Largest error as a part of the largest wanted value."""
    return ((got.double() - want.double()).abs().max() / want.double().abs().max()).item()


def make_pixels() -> torch.Tensor:
    random = torch.Generator().manual_seed(1000 + SEED)
    side = VISION["image"]
    y, x = torch.meshgrid(torch.arange(side) / side, torch.arange(side) / side, indexing="ij")
    tiles = []
    for _ in range(TILES * 3):
        fx, fy, phase = (torch.rand(3, generator=random) * torch.tensor([9.0, 9.0, 6.3])).tolist()
        noise = torch.randn(side, side, generator=random)
        tiles.append(torch.sin(fx * x + fy * y + phase) + 0.4 * noise)
    return torch.stack(tiles).reshape(TILES, 3, side, side)


def main():
    torch.set_num_threads(1)
    draw, original = Draw(), config()
    draw_vision(draw)
    draw_llm(draw)
    for name in ("checkpoint", "hf"):
        shutil.rmtree(HERE / name, ignore_errors=True)
        (HERE / name).mkdir()
    save_file(draw.tensors, HERE / "checkpoint/model.safetensors", metadata={"format": "pt"})
    (HERE / "checkpoint/config.json").write_text(json.dumps(original, indent=2) + "\n")
    model = transformers_model(original, draw.tensors)
    saved = json.dumps(model.config.to_dict(), indent=2, sort_keys=True)
    (HERE / "hf/config.json").write_text(saved + "\n")
    pixels = make_pixels()
    with torch.no_grad():
        embeds = model.get_image_features(pixels, return_dict=True).pooler_output
    embeds = embeds.reshape(TILES, -1, LLM["hidden"]).contiguous()
    cases = {"vision/in/pixel_values": pixels, "vision/out/image_embeds": embeds}
    save_file(cases, HERE / "cases.safetensors")
    wide = {name: tensor.double() for name, tensor in draw.tensors.items()}
    plain = lambda mistake="": torch.stack([plain_tile(wide, t.double(), mistake) for t in pixels])
    error = off(embeds, plain())
    print(f"float64 forward: {error:.1e}")
    assert error < AGREEMENT
    for mistake in MISTAKES:
        shows = off(plain(mistake), embeds)
        print(f"{mistake}: {shows:.1e}")
        assert shows > SHOWS, mistake


if __name__ == "__main__":
    main()
