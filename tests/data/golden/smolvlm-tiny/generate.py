"""Makes the tiny SmolVLM2 checkpoint and its golden vectors, and checks them.

Run from anywhere: `python generate.py`; it rewrites `checkpoint/`, `nested/`, `cases.safetensors`, `prompts.json`,
`split.json`, `split.safetensors`, `answers.json` and `words.json` beside itself, byte for byte the same with these versions, in
some seconds.

Made with Python 3.11, torch 2.15.0, transformers 5.23.0, safetensors 0.8.0, pillow 12.3.0.

Flow: random weights under the published names, rounded to BF16 -> the numbers from transformers in float32, eager
attention, those of the class of Idefics3 equal to those of SmolVLM's -> proof that each common mistake would show.
Pictures go through transformers' processor on Pillow, prompts through its `_prompt_split_image`.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "qwen2_5_vl-tiny"))

from generate import Draw, draw_llm, off  # noqa: E402

SEED = 41
SHOWS = 2e-4
"""Least effect of a mistake, as a part of the largest value."""
FAKE, GLOBAL, IMAGE, NEWLINE, BLANK, ROWS = 250, 251, 252, 248, 247, 200
"""Ids of the words of pictures; that of the tile in row r and column c, from 0, is ROWS + 6 r + c."""
TOKENS = 12
PICTURES = ["shapes-100x60", "see-through-56x56", "grey-tower-37x150", "lettering-300x80"]

CONFIG = {
    "architectures": ["SmolVLMForConditionalGeneration"],
    "image_token_id": IMAGE,
    "model_type": "smolvlm",
    "scale_factor": 2,
    "text_config": {
        "architectures": ["VLlama3ForCausalLM"],
        "head_dim": 16,
        "hidden_size": 64,
        "intermediate_size": 104,
        "max_position_embeddings": 8192,
        "model_type": "llama",
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "pad_token_id": 2,
        "rms_norm_eps": 1e-05,
        "rope_theta": 100000,
        "torch_dtype": "bfloat16",
        "vocab_size": 256,
    },
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vision_config": {
        "hidden_size": 32,
        # Four patches and two pixels that no patch has, as 384 pixels are 27 patches of 14 and 6 pixels.
        "image_size": 18,
        "intermediate_size": 56,
        "max_image_size": {"longest_edge": 18},
        "model_type": "smolvlm_vision",
        "num_attention_heads": 2,
        "num_hidden_layers": 3,
        "patch_size": 4,
        "size": {"longest_edge": 72},
    },
}
SIDE = CONFIG["vision_config"]["image_size"]
PER_TILE = (SIDE // CONFIG["vision_config"]["patch_size"] // CONFIG["scale_factor"]) ** 2

Weights = dict[str, torch.Tensor]


def draw() -> Weights:
    v, text = CONFIG["vision_config"], CONFIG["text_config"]
    c, inter, patch = v["hidden_size"], v["intermediate_size"], v["patch_size"]
    drawn, vision = Draw(SEED), "model.vision_model"
    drawn.normal(f"{vision}.embeddings.patch_embedding.weight", (c, 3, patch, patch), 0.02 / 48**0.5)
    drawn.normal(f"{vision}.embeddings.patch_embedding.bias", (c,), 0.005)
    drawn.normal(f"{vision}.embeddings.position_embedding.weight", ((SIDE // patch) ** 2, c), 0.02)
    for index in range(v["num_hidden_layers"]):
        layer = f"{vision}.encoder.layers.{index}"
        for part, gain in [("q", 1.6), ("k", 1.6), ("v", 1.6)]:
            drawn.linear(f"{layer}.self_attn.{part}_proj", c, c, gain, 0.4)
        drawn.linear(f"{layer}.self_attn.out_proj", c, c, 0.02, 0.002)
        drawn.norm(f"{layer}.layer_norm1", c, 0.2)
        drawn.norm(f"{layer}.layer_norm2", c, 0.2)
        drawn.linear(f"{layer}.mlp.fc1", inter, c, 1.2, 0.3)
        drawn.linear(f"{layer}.mlp.fc2", c, inter, 0.04, 0.004)
    drawn.norm(f"{vision}.post_layernorm", c, 0.2)
    wide = c * CONFIG["scale_factor"] ** 2
    drawn.linear("model.connector.modality_projection.proj", text["hidden_size"], wide, 0.05, None)
    draw_llm(drawn, text, "model.text_model", bias=False, head_dim=text["head_dim"], qk_norm=False)
    drawn.linear("lm_head", text["vocab_size"], text["hidden_size"], 4.0, None)
    return drawn.tensors


def load(weights: Weights, config_class=SmolVLMConfig, model_class=SmolVLMForConditionalGeneration):
    kinds = {"smolvlm": config_class.model_type, "smolvlm_vision": config_class.model_type + "_vision"}
    config = json.loads(json.dumps(CONFIG))
    config["model_type"] = kinds[config["model_type"]]
    config["vision_config"]["model_type"] = kinds[config["vision_config"]["model_type"]]
    config = config_class.from_dict(config)
    config._attn_implementation = "eager"
    model = model_class(config).float().eval()
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()}, strict=True)
    return model


def tiles() -> torch.Tensor:
    """Two tiles of waves and noise: [2, 3, SIDE, SIDE]."""
    random = torch.Generator().manual_seed(1000 * SEED)
    y, x = torch.meshgrid(torch.arange(SIDE) / SIDE, torch.arange(SIDE) / SIDE, indexing="ij")
    planes = []
    for _ in range(6):
        fx, fy, phase = (torch.rand(3, generator=random) * torch.tensor([9.0, 9.0, 6.3])).tolist()
        noise = torch.randn(SIDE, SIDE, generator=random)
        planes.append(torch.sin(fx * x + fy * y + phase) + 0.4 * noise)
    return torch.stack(planes).reshape(2, 3, SIDE, SIDE)


def see(model, pixels: torch.Tensor) -> torch.Tensor:
    """[tiles, tokens, hidden]."""
    with torch.no_grad():
        rows = model.get_image_features(pixel_values=pixels[None], return_dict=True).pooler_output
    return torch.cat(rows).reshape(len(pixels), PER_TILE, -1)


def words(rows: int, columns: int) -> list[int]:
    """The tokens of a picture, as `_prompt_split_image` of transformers writes it."""
    from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

    text = get_image_prompt_string(rows, columns, PER_TILE, "<fake_token_around_image>", "<image>", "<global-img>")
    names = {"<fake_token_around_image>": FAKE, "<global-img>": GLOBAL, "<image>": IMAGE, "\n\n": BLANK, "\n": NEWLINE}
    names |= {f"<row_{r + 1}_col_{c + 1}>": ROWS + 6 * r + c for r in range(6) for c in range(6)}
    ids = []
    while text:
        name = next(name for name in sorted(names, key=len, reverse=True) if text.startswith(name))
        ids.append(names[name])
        text = text[len(name) :]
    return ids


def processor(along: int = 4) -> SmolVLMImageProcessorPil:
    return SmolVLMImageProcessorPil(
        size={"longest_edge": along * SIDE}, max_image_size={"longest_edge": SIDE},
        image_mean=[0.5] * 3, image_std=[0.5] * 3,
    )


def processed(name: str, along: int = 4):
    """Pixels of all tiles, rows and columns.  One row and column are none where nothing is split."""
    from PIL import Image

    picture = Image.open(ROOT / f"preprocess/{name}.png")
    if picture.mode == "RGBA":
        # As every other processor lays transparency on white.
        white = Image.new("RGBA", picture.size, "WHITE")
        picture = Image.alpha_composite(white, picture)
    found = processor(along)(picture.convert("RGB"), return_tensors="np", return_row_col_info=True)
    return torch.tensor(found["pixel_values"][0]).float(), found["rows"][0][0], found["cols"][0][0]


def cases(model) -> Weights:
    pixels = tiles()
    embeds = see(model, pixels)
    random = torch.Generator().manual_seed(SEED)
    text = lambda count: torch.randint(0, 190, (count,), generator=random).tolist()
    ids = torch.tensor([text(4) + words(0, 0) + text(3) + words(0, 0) + text(2)])
    inputs = model.get_input_embeddings()(ids).detach().clone()
    inputs[0, ids[0] == IMAGE] = embeds.flatten(0, 1)
    with torch.no_grad():
        logits = model(input_ids=ids, pixel_values=pixels[None], use_cache=False).logits
    found = {
        "vision/in/pixel_values": pixels,
        "vision/out/image_embeds": embeds,
        "llm/in/inputs_embeds": inputs,
        "llm/in/position_ids": torch.arange(ids.shape[1])[None],
        "llm/in/attention_mask": torch.ones_like(ids),
        "llm/out/logits": logits,
    }
    return {name: tensor.detach().contiguous() for name, tensor in found.items()}, ids[0].tolist()


def layer(model):
    return model.model.vision_model.encoder.layers[0]


def swap_norms(model):
    one = layer(model)
    one.layer_norm1, one.layer_norm2 = one.layer_norm2, one.layer_norm1


def vision_eps(model):
    for module in model.model.vision_model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1e-5


def exact_gelu(model):
    for one in model.model.vision_model.encoder.layers:
        one.mlp.activation_fn = torch.nn.GELU()


def no_last_norm(model):
    model.model.vision_model.post_layernorm.forward = lambda rows: rows.contiguous()


def columns_first(model):
    connector = model.model.connector
    shuffle = connector.pixel_shuffle

    def wrong(x, scale_factor):
        count, rows, channels = x.shape
        side = int(rows**0.5)
        return shuffle(x.view(count, side, side, channels).transpose(1, 2).reshape(x.shape), scale_factor)

    connector.pixel_shuffle = wrong


def places_by_column(model):
    table = model.model.vision_model.embeddings.position_embedding.weight
    side = SIDE // CONFIG["vision_config"]["patch_size"]
    table.data = table.data.view(side, side, -1).transpose(0, 1).reshape(table.shape)


MISTAKES = {
    "norms of a layer swapped": swap_norms,
    "vision epsilon 1e-5": vision_eps,
    "exact GELU": exact_gelu,
    "no norm behind the layers": no_last_norm,
    "the shuffle by columns": columns_first,
    "positions by columns": places_by_column,
}


def prove_mistakes_show(weights: Weights, right: Weights):
    for what, mistake in MISTAKES.items():
        model = load(weights)
        mistake(model)
        shows = off(see(model, tiles()), right["vision/out/image_embeds"])
        print(f"{what}: {shows:.1e}")
        assert shows > SHOWS, what


def splits() -> tuple[Weights, list[dict]]:
    tensors, table = {}, []
    for name in PICTURES:
        for along in [4, 2, 1]:
            pixels, rows, columns = processed(name, along)
            key = f"split-{along}/{name}"
            tensors[key] = pixels
            table.append({
                "tensor": key, "file": f"{name}.png", "side": SIDE, "along": along, "rows": int(rows),
                "columns": int(columns), "mean": [0.5] * 3, "std": [0.5] * 3,
            })
    return tensors, table


def answer(model, names: list[str]) -> dict:
    """Greedy tokens about pictures, each with the likeliest five and their logarithms."""
    ids, seen = [7, 9], []
    for name in names:
        pixels, rows, columns = processed(name, 2)
        ids += words(rows, columns) + [30]
        seen.append(pixels)
    ids += [100, 101]
    row = torch.tensor([ids])
    with torch.no_grad():
        out = model.generate(
            input_ids=row, attention_mask=torch.ones_like(row), pixel_values=torch.cat(seen)[None],
            do_sample=False, max_new_tokens=TOKENS, eos_token_id=None, pad_token_id=0,
            return_dict_in_generate=True, output_logits=True,
        )
    likely = [torch.log_softmax(row[0].float(), -1).topk(5) for row in out.logits]
    return {
        "pictures": [f"{name}.png" for name in names], "ids": ids,
        "said": out.sequences[0, len(ids) :].tolist(),
        "top": [list(zip(row.indices.tolist(), row.values.tolist())) for row in likely],
    }


def tokenizer() -> dict:
    """Words that are a token each, `w0` to `w255` but for those of pictures, whose line ends are tokens, too."""
    special = {BLANK: "\n\n", NEWLINE: "\n", 249: "<end_of_utterance>"}
    special |= {FAKE: "<fake_token_around_image>", GLOBAL: "<global-img>", IMAGE: "<image>"}
    special |= {ROWS + 6 * r + c: f"<row_{r + 1}_col_{c + 1}>" for r in range(6) for c in range(6)}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": at, "content": special[at]} | plain for at in sorted(special)],
        "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
        "model": {
            "type": "WordLevel", "unk_token": "w0",
            "vocab": {special.get(at, f"w{at}"): at for at in range(CONFIG["text_config"]["vocab_size"])},
        },
    }


def lines(rows: list) -> str:
    return "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"


def main():
    torch.set_num_threads(1)
    weights = draw()
    for name in ("checkpoint", "nested"):
        shutil.rmtree(HERE / name, ignore_errors=True)
        (HERE / name).mkdir()
    save_file(weights, HERE / "checkpoint/model.safetensors", metadata={"format": "pt"})
    (HERE / "checkpoint/config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    model = load(weights)
    saved = model.config.to_dict()
    saved["architectures"] = CONFIG["architectures"]
    (HERE / "nested/config.json").write_text(json.dumps(saved, indent=2, sort_keys=True) + "\n")
    right, ids = cases(model)
    other, _ = cases(load(weights, Idefics3Config, Idefics3ForConditionalGeneration))
    assert all(torch.equal(right[name], other[name]) for name in right), "the classes differ"
    save_file(right, HERE / "cases.safetensors")
    prompts = [{"rows": 0, "columns": 0, "ids": ids}]
    (HERE / "prompts.json").write_text(json.dumps({"image_token": IMAGE, "prompts": prompts}) + "\n")
    prove_mistakes_show(weights, right)
    tensors, table = splits()
    save_file({name: rows.contiguous() for name, rows in tensors.items()}, HERE / "split.safetensors")
    (HERE / "split.json").write_text(lines(table))
    answers = [answer(model, PICTURES[:1]), answer(model, PICTURES[2:])]
    (HERE / "answers.json").write_text(lines(answers))
    (HERE / "words.json").write_text(json.dumps(tokenizer(), separators=(",", ":")) + "\n")
    for name, tensor in right.items():
        print(name, list(tensor.shape), f"std {tensor.float().std().item():.3g}")


if __name__ == "__main__":
    main()
