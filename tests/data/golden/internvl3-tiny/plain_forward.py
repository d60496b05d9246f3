"""Runs InternVL3 or 3.5 from its original checkpoint names in plain float64 torch.

Weights by name -> image embeddings -> logits, one tile or one sequence at a time, written from
the description of the model. It is the second opinion on the transformers numbers, so it knows
nothing of transformers; `Semantics` names every choice that is easily made wrong.
"""

from dataclasses import dataclass

import torch

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Shape:
    """The sizes that the tensors alone do not tell."""

    vision_layers: int
    vision_heads: int
    patch: int
    llm_layers: int
    heads: int
    kv_heads: int
    image_token: int


@dataclass(frozen=True)
class Semantics:
    """Every choice a reader of the checkpoint must make; the defaults are the right ones."""

    vit_eps: float = 1e-6
    projector_eps: float = 1e-5
    rms_eps: float = 1e-6
    rope_theta: float = 1e6
    gelu: str = "none"
    qkv_layout: str = "q|k|v"
    shuffle: str = "v2"
    dropped_row: str = "class"
    ls_first: str = "ls1"
    rope_pairs: str = "halves"
    kv_of_head: str = "grouped"
    qk_norm: str = "before rope"
    causal: bool = True
    final_norm: bool = True
    lm_head: str = "language_model.lm_head.weight"


RIGHT = Semantics()


def linear(w: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
    out = x @ w[f"{name}.weight"].T
    bias = w.get(f"{name}.bias")
    return out if bias is None else out + bias


def layer_norm(w: Weights, name: str, x: torch.Tensor, eps: float) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    variance = (centred * centred).mean(-1, keepdim=True)
    return centred / (variance + eps).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]


def rms_norm(w: Weights, name: str, x: torch.Tensor, eps: float) -> torch.Tensor:
    return x / ((x * x).mean(-1, keepdim=True) + eps).sqrt() * w[f"{name}.weight"]


def gelu(x: torch.Tensor, kind: str) -> torch.Tensor:
    return torch.nn.functional.gelu(x, approximate=kind)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """q, k, v [n, head_dim] of one head -> [n, head_dim]."""
    scores = q @ k.T * q.shape[-1] ** -0.5
    if causal:
        future = torch.ones_like(scores, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    return torch.softmax(scores, -1) @ v


def patches(w: Weights, tile: torch.Tensor, patch: int) -> torch.Tensor:
    """tile [3, S, S] -> [(S/patch)^2, C], row by row."""
    rows = [
        tile[:, y : y + patch, x : x + patch].reshape(-1)
        for y in range(0, tile.shape[1], patch)
        for x in range(0, tile.shape[2], patch)
    ]
    weight = w["vision_model.embeddings.patch_embedding.weight"]
    bias = w["vision_model.embeddings.patch_embedding.bias"]
    return torch.stack(rows) @ weight.reshape(weight.shape[0], -1).T + bias


def vision_attention(w: Weights, layer: str, x: torch.Tensor, shape: Shape, s: Semantics):
    n, channels = x.shape
    heads, dim = shape.vision_heads, channels // shape.vision_heads
    fused = linear(w, f"{layer}.attn.qkv", x)
    if s.qkv_layout == "q|k|v":
        fused = fused.reshape(n, 3, heads, dim)
    else:
        fused = fused.reshape(n, heads, 3, dim).transpose(1, 2)
    out = [attend(fused[:, 0, h], fused[:, 1, h], fused[:, 2, h], False) for h in range(heads)]
    return linear(w, f"{layer}.attn.proj", torch.cat(out, -1))


def shuffle(grid: torch.Tensor, version: str) -> torch.Tensor:
    """grid [h, w, C] -> [(h/2)*(w/2), 4C]; channel block 2*dy + dx is the pixel (dy, dx).

    v1 forgets to swap the axes back, so its tokens run down the columns.
    """
    h, w, _ = grid.shape
    tokens = [
        torch.cat([grid[y + dy, x + dx] for dy in (0, 1) for dx in (0, 1)])
        for y in range(0, h, 2)
        for x in range(0, w, 2)
    ]
    out = torch.stack(tokens)
    if version == "v1":
        out = out.reshape(h // 2, w // 2, -1).transpose(0, 1).reshape(out.shape)
    return out


def embed_tile(w: Weights, tile: torch.Tensor, shape: Shape, s: Semantics) -> torch.Tensor:
    """tile [3, S, S] -> [tokens, H]."""
    embeddings = "vision_model.embeddings"
    x = torch.cat([w[f"{embeddings}.class_embedding"][0], patches(w, tile, shape.patch)])
    x = x + w[f"{embeddings}.position_embedding"][0]
    first, second = ("ls1", "ls2") if s.ls_first == "ls1" else ("ls2", "ls1")
    for index in range(shape.vision_layers):
        layer = f"vision_model.encoder.layers.{index}"
        normed = layer_norm(w, f"{layer}.norm1", x, s.vit_eps)
        x = x + w[f"{layer}.{first}"] * vision_attention(w, layer, normed, shape, s)
        hidden = linear(w, f"{layer}.mlp.fc1", layer_norm(w, f"{layer}.norm2", x, s.vit_eps))
        x = x + w[f"{layer}.{second}"] * linear(w, f"{layer}.mlp.fc2", gelu(hidden, s.gelu))
    x = x[1:] if s.dropped_row == "class" else x[:-1]
    side = round(x.shape[0] ** 0.5)
    x = shuffle(x.reshape(side, side, -1), s.shuffle)
    x = linear(w, "mlp1.1", layer_norm(w, "mlp1.0", x, s.projector_eps))
    return linear(w, "mlp1.3", gelu(x, s.gelu))


def embed_tiles(w: Weights, tiles: torch.Tensor, shape: Shape, s: Semantics) -> torch.Tensor:
    """tiles [N, 3, S, S] -> [N, tokens, H]."""
    return torch.stack([embed_tile(w, tile, shape, s) for tile in tiles])


def rotate(x: torch.Tensor, s: Semantics) -> torch.Tensor:
    """Rotary embedding of x [n, head_dim] at positions 0..n."""
    n, dim = x.shape
    frequency = s.rope_theta ** (-torch.arange(0, dim, 2, dtype=x.dtype) / dim)
    angle = torch.arange(n, dtype=x.dtype)[:, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    if s.rope_pairs == "halves":
        a, b = x[:, : dim // 2], x[:, dim // 2 :]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    a, b = x[:, 0::2], x[:, 1::2]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(n, dim)


def head_norm(w: Weights, name: str, x: torch.Tensor, heads: int, s: Semantics) -> torch.Tensor:
    """The RMSNorm that some families put on each head of x [n, heads * head_dim]."""
    if f"{name}.weight" not in w:
        return x
    if s.qk_norm == "whole row":
        scale = w[f"{name}.weight"].repeat(heads)
        return x / ((x * x).mean(-1, keepdim=True) + s.rms_eps).sqrt() * scale
    return torch.cat([rms_norm(w, name, head, s.rms_eps) for head in x.chunk(heads, -1)], -1)


def turned(w: Weights, name: str, x: torch.Tensor, heads: int, s: Semantics):
    """The heads of x [n, heads * head_dim], normed if the family norms them, and rotated."""
    if s.qk_norm != "after rope":
        x = head_norm(w, name, x, heads, s)
    out = [rotate(head, s) for head in x.chunk(heads, -1)]
    if s.qk_norm == "after rope":
        out = [head_norm(w, name, head, 1, s) for head in out]
    return out


def llm_attention(w: Weights, layer: str, x: torch.Tensor, shape: Shape, s: Semantics):
    name = f"{layer}.self_attn"
    q = turned(w, f"{name}.q_norm", linear(w, f"{name}.q_proj", x), shape.heads, s)
    k = turned(w, f"{name}.k_norm", linear(w, f"{name}.k_proj", x), shape.kv_heads, s)
    v = linear(w, f"{layer}.self_attn.v_proj", x).chunk(shape.kv_heads, -1)
    out = []
    for head in range(shape.heads):
        grouped = head // (shape.heads // shape.kv_heads)
        kv = grouped if s.kv_of_head == "grouped" else head % shape.kv_heads
        out.append(attend(q[head], k[kv], v[kv], s.causal))
    return linear(w, f"{layer}.self_attn.o_proj", torch.cat(out, -1))


def logits(
    w: Weights, ids: torch.Tensor, images: torch.Tensor | None, shape: Shape, s: Semantics
) -> torch.Tensor:
    """ids [n] -> [n, vocab]; rows of image tokens come from images [N, tokens, H], in order."""
    x = w["language_model.model.embed_tokens.weight"][ids]
    if images is not None:
        x[ids == shape.image_token] = images.reshape(-1, x.shape[-1])
    for index in range(shape.llm_layers):
        layer = f"language_model.model.layers.{index}"
        normed = rms_norm(w, f"{layer}.input_layernorm", x, s.rms_eps)
        x = x + llm_attention(w, layer, normed, shape, s)
        normed = rms_norm(w, f"{layer}.post_attention_layernorm", x, s.rms_eps)
        gate = torch.nn.functional.silu(linear(w, f"{layer}.mlp.gate_proj", normed))
        up = linear(w, f"{layer}.mlp.up_proj", normed)
        x = x + linear(w, f"{layer}.mlp.down_proj", gate * up)
    if s.final_norm:
        x = rms_norm(w, "language_model.model.norm", x, s.rms_eps)
    return x @ w[s.lm_head].T
