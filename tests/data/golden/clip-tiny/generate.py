"""Makes the tiny CLIP checkpoints and their golden vectors.

Run from anywhere: `python generate.py`; it rewrites `checkpoint/` and `cases.safetensors` beside
itself and in `../clip-vision-tiny` and `../clip-text-tiny`, byte for byte the same with these
versions, in a few seconds.

Made with Python 3.11, torch 2.15.0, transformers 5.23.0, safetensors 0.8.0.

Flow: random weights -> what `save_pretrained` of transformers writes -> the numbers of
transformers in float32 with eager attention, its `interpolate_pos_encoding` for pictures of
another size -> proof that common mistakes would show.
"""

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPTextModel, CLIPVisionConfig
from transformers import CLIPVisionModel

HERE = Path(__file__).resolve().parent
EOS = 57
VISION = dict(
    hidden_size=48,
    num_hidden_layers=3,
    num_attention_heads=3,
    intermediate_size=80,
    image_size=32,
    patch_size=8,
    num_channels=3,
    layer_norm_eps=1e-5,
    projection_dim=24,
)
TEXT = dict(
    vocab_size=60,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=16,
    layer_norm_eps=1e-5,
    projection_dim=24,
    bos_token_id=56,
    pad_token_id=EOS,
)
GRIDS = [(32, 32), (48, 40), (24, 24)]
"""The pictures: the model's own size, one larger and not square, one smaller."""
SHOWS = 1e-3
"""Least effect of a mistake, as a part of the largest value."""


def fill(model, seed):
    """Weights wide enough that every part counts, embeddings small enough that epsilon does."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in sorted(model.named_parameters()):
        noise = torch.randn(weight.shape, generator=generator)
        with torch.no_grad():
            if "norm" in name and name.endswith("weight"):
                weight.copy_(1 + 0.2 * noise)
            elif "patch_embedding" in name:
                weight.copy_(0.02 * noise / weight[0].numel() ** 0.5)
            elif "embedding" in name:
                weight.copy_(0.02 * noise)
            elif name.endswith("bias"):
                weight.copy_(0.1 * noise)
            elif weight.dim() == 2:
                weight.copy_(noise / weight.shape[-1] ** 0.5)


def pictures(seed, height, width):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((2, 3, height, width), generator=generator)


def texts(seed, eos):
    """Three texts of 12, 6 and 2 tokens that end with `eos`, padded with it on the right."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 50, (3, 12), generator=generator)
    ids[:, 0] = TEXT["bos_token_id"]
    mask = torch.zeros_like(ids)
    for row, length in enumerate([12, 6, 2]):
        # Padding: eos again, or, where eos is merely the largest token, anything smaller.
        ids[row, length - 1 :] = eos
        if eos != EOS:
            ids[row, length:] = 1
        mask[row, :length] = 1
    return ids, mask


def shows(what, found, right):
    effect = ((found - right).abs().max() / right.abs().max()).item()
    assert effect > SHOWS, f"{what} moves the answer by {effect:.1e} only"
    print(f"  {what}: {effect:.1e}")


def vision_cases(model, projection):
    """The outputs for every grid, by case."""
    cases = {}
    for at, (height, width) in enumerate(GRIDS):
        case = "vision" if at == 0 else f"vision-{height}x{width}"
        pixels = pictures(10 + at, height, width)
        with torch.no_grad():
            out = model(pixel_values=pixels, interpolate_pos_encoding=at > 0)
        pooled = out.pooler_output
        cases[f"{case}/in/pixel_values"] = pixels
        cases[f"{case}/out/last_hidden_state"] = out.last_hidden_state
        if projection is None:
            cases[f"{case}/out/pooler_output"] = pooled
        else:
            cases[f"{case}/out/image_embeds"] = pooled @ projection.weight.T
    return cases


def text_cases(model, projection, eos):
    ids, mask = texts(20, eos)
    with torch.no_grad():
        out = model(input_ids=ids, attention_mask=mask)
        short = model(input_ids=ids[:, :6], attention_mask=mask[:, :6])
    # Causal: what comes later changes nothing.
    assert torch.allclose(out.last_hidden_state[:, :6], short.last_hidden_state, atol=1e-5)
    cases = {
        "encoder/in/input_ids": ids,
        "encoder/in/attention_mask": mask,
        "encoder/out/last_hidden_state": out.last_hidden_state,
    }
    if projection is None:
        cases["encoder/out/pooler_output"] = out.pooler_output
    else:
        cases["encoder/out/text_embeds"] = out.pooler_output @ projection.weight.T
    return cases


def check_that_mistakes_show(model, cases):
    """Gives the other form of each choice, through transformers."""
    right = cases["vision/out/image_embeds"]
    vision = model.vision_model
    pixels = cases["vision/in/pixel_values"]

    def embeds():
        with torch.no_grad():
            return vision(pixel_values=pixels).pooler_output @ model.visual_projection.weight.T

    quick = vision.encoder.layers[0].mlp.activation_fn
    for layer in vision.encoder.layers:
        layer.mlp.activation_fn = torch.nn.GELU()
    shows("exact GELU", embeds(), right)
    for layer in vision.encoder.layers:
        layer.mlp.activation_fn = quick
    vision.pre_layrnorm.eps = 1e-6
    shows("epsilon 1e-6", embeds(), right)
    vision.pre_layrnorm.eps = 1e-5
    assert torch.equal(embeds(), right)
    table = vision.embeddings.position_embedding.weight[1:].reshape(1, 4, 4, -1).permute(0, 3, 1, 2)
    of = dict(size=(6, 5), align_corners=False)
    cubic = torch.nn.functional.interpolate(table, mode="bicubic", **of)
    linear = torch.nn.functional.interpolate(table, mode="bilinear", **of)
    shows("bilinear positions", linear, cubic)


def save(model, dtype, here, make):
    directory = here / "checkpoint"
    shutil.rmtree(directory, ignore_errors=True)
    model.to(dtype).save_pretrained(directory)
    model.to(torch.float32).eval()
    model.set_attn_implementation("eager")
    cases = {name: value.detach().contiguous() for name, value in make().items()}
    save_file(cases, here / "cases.safetensors")
    names = sorted(load_file(directory / "model.safetensors"))
    print(here.name, len(names), names[0], names[-1])
    return cases


def main():
    torch.set_num_threads(1)
    quick = dict(hidden_act="quick_gelu")
    both = CLIPModel(
        CLIPConfig(
            text_config=CLIPTextConfig(**TEXT, **quick, eos_token_id=EOS).to_dict(),
            vision_config=CLIPVisionConfig(**VISION, **quick).to_dict(),
            projection_dim=24,
        )
    )
    fill(both, 1)
    cases = save(
        both,
        torch.float32,
        HERE,
        lambda: vision_cases(both.vision_model, both.visual_projection)
        | text_cases(both.text_model, both.text_projection, EOS),
    )
    check_that_mistakes_show(both, cases)

    # Towers of their own: exact GELU, no projection, BF16 and F16 on disk; the text tower has the
    # end token 2 of early configurations, which means the largest token of each text.
    here = HERE.parent / "clip-vision-tiny"
    here.mkdir(exist_ok=True)
    vision = CLIPVisionModel(CLIPVisionConfig(**VISION, hidden_act="gelu"))
    fill(vision, 2)
    save(vision, torch.bfloat16, here, lambda: vision_cases(vision, None))
    here = HERE.parent / "clip-text-tiny"
    here.mkdir(exist_ok=True)
    text = CLIPTextModel(CLIPTextConfig(**TEXT, hidden_act="gelu", eos_token_id=2))
    fill(text, 3)
    save(text, torch.float16, here, lambda: text_cases(text, None, TEXT["vocab_size"] - 1))


if __name__ == "__main__":
    main()
