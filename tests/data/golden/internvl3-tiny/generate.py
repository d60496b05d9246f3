"""Makes the tiny InternVL3 checkpoint and its golden vectors, and checks them.

Run from anywhere: `python generate.py`; it rewrites `checkpoint/`, `golden.safetensors`,
`golden.json`, `hf/`, `tokenizer_golden.json` and `template_golden.json` beside itself, byte for byte the
same with these versions, in about ten seconds on one core.

Made with Python 3.11, torch 2.15.0, transformers 5.23.0, tokenizers 0.23.3, safetensors 0.8.0
(`pip install torch transformers tokenizers safetensors`).

`../internvl3_5-tiny/generate.py` runs this file with a Qwen3 decoder in the place of `LLM`.

`python generate.py --search` looks for the first seed from 1 that has clear greedy margins
and uses it instead of SEED (minutes).

Flow: tokenizer -> random weights in the original layout, rounded to BF16 -> the numbers from
transformers' InternVLForConditionalGeneration in float32 -> the same numbers from
`plain_forward.py` in float64, which must agree -> proof that each common mistake would show.
"""

import itertools
import json
import math
import shutil
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers
from transformers import InternVLConfig, InternVLForConditionalGeneration
from transformers import PreTrainedTokenizerFast

import plain_forward
from plain_forward import RIGHT, Shape, Weights

HERE = Path(__file__).resolve().parent
CHECKPOINT = HERE / "checkpoint"

VISION = dict(hidden=48, layers=3, heads=3, inter=112, image=56, patch=14)
LLM = dict(
    family="qwen2",
    architecture="Qwen2ForCausalLM",
    qkv_bias=True,
    qk_norm=False,
    hidden=80,
    layers=3,
    heads=10,
    kv_heads=2,
    head_dim=8,
    inter=136,
    vocab=384,
    rope_scaling={"factor": 2.0, "rope_type": "dynamic", "type": "dynamic"},
    own_fields={},
)
DOWNSAMPLE = 0.5
TOKENS_PER_TILE = int((VISION["image"] // VISION["patch"] * DOWNSAMPLE) ** 2)
TILES = 2
NEW_TOKENS = 16

SEED = 267
"""The first seed whose greedy answers are varied, free of special tokens and clear by MARGIN."""

AGREEMENT = 1e-5
"""Largest error of the float32 numbers, as a part of the largest value."""
MARGIN = 0.02
"""Smallest lead of each greedy token over the runner-up, as a part of the largest logit."""
DISTINCT_MIN = 11
"""Distinct tokens wanted in each greedy answer of 16."""
SHOWS = 2e-4
"""Least effect of a mistake, as a part of the largest value."""

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>"]

QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen2's tokenizer cuts text into words before merging."""

CORPUS = [
    *["system\nYou are a helpful assistant."] * 3,
    "user\nWhat is in this picture?",
    "assistant\nA red circle, a blue square and a green triangle on a white background.",
    "Name the shapes and the colours you can see, from left to right.",
    "The yellow star is above the small black circle; there is no other shape.",
    "How many circles are there? There are two red circles and one blue circle.",
    "Describe the image. The image shows a square beside a triangle.",
    "naïve café, 你好, 你好，世界",
]

CHAT_TEMPLATE = """\
{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role != 'system' or not loop.first %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if message.content is string %}
            {{- message.content }}
        {%- else %}
            {%- for part in message.content %}
                {%- if part.type == 'image' %}
                    {{- '<image>\\n' }}
                {%- elif part.type == 'text' %}
                    {{- part.text }}
                {%- endif %}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

TEXT_PROMPT = [{"role": "user", "content": "Name the shapes and colours."}]
IMAGE_PROMPT = [{"role": "user", "content": "<image>\nWhat is in this picture?"}]

TRICKY_TEXTS = [
    "",
    "Hello, world!",
    "  two spaces before,   three inside, one after ",
    "tabs\tand\r\nline ends\n\n\n",
    "don't WE'LL i'Ve it's",
    "12345 6.78 ½ ٣",
    "naïve café",
    "nai\u0308ve cafe\u0301",
    "你好，世界。こんにちは",
    "🙂 👩‍👩‍👧 🇫🇷 👍🏽",
    "مرحبا שלום नमस्ते",
    "zero\u200bwidth no\u00a0break \u2028 line \ufeff",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "<img><IMG_CONTEXT><IMG_CONTEXT></img>\nWhat is this?",
    "<|im_start |> <img > <img_context> <|im_end|",
    "a<|im_end|>b <|endoftext|> c<image>",
    "if (x != 0) { return \"\\n\"; } // ---=== ___",
]

CHATS = [
    ([{"role": "user", "content": "Hello"}], True),
    ([{"role": "user", "content": "Hello"}], False),
    (TEXT_PROMPT, True),
    (IMAGE_PROMPT, True),
    (
        [
            {"role": "system", "content": "Answer in one word."},
            {"role": "user", "content": "<image>\nWhat colour is the star?"},
        ],
        True,
    ),
    (
        [
            {"role": "user", "content": "How many circles?"},
            {"role": "assistant", "content": "Two."},
            {"role": "user", "content": "And squares?"},
        ],
        True,
    ),
    (
        [
            {"role": "user", "content": "Hi"},
            {"role": "system", "content": "a late system message"},
            {"role": "assistant", "content": ""},
        ],
        False,
    ),
    ([{"role": "user", "content": "  keep \n my spaces \n"}], True),
    (
        [{"role": "user", "content": "naïve 你好 🙂 <b>&amp; \"quotes\" 'too' \\n {{ 1 + 1 }}"}],
        True,
    ),
    (
        [
            {
                "role": "user",
                "content": [
                    {"type": "image"},
                    {"type": "text", "text": "What is in this picture?"},
                ],
            }
        ],
        True,
    ),
]


def make_tokenizer() -> Tokenizer:
    """Byte-level BPE in the shape of Qwen2's, special tokens after the merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(QWEN2_WORDS), behavior="isolated", invert=False)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=LLM["vocab"] - len(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in SPECIAL])
    assert tokenizer.get_vocab_size() == LLM["vocab"]
    return tokenizer


def tokenizer_config(tokenizer: Tokenizer) -> dict:
    added = {
        str(tokenizer.token_to_id(token)): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for token in SPECIAL
    }
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": SPECIAL[1:],
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 8192,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def model_config(tokenizer: Tokenizer) -> dict:
    """config.json with the fields of the original InternVL3 ones."""
    end_of_text = tokenizer.token_to_id("<|endoftext|>")
    return {
        "architectures": ["InternVLChatModel"],
        "auto_map": {
            "AutoConfig": "configuration_internvl_chat.InternVLChatConfig",
            "AutoModel": "modeling_internvl_chat.InternVLChatModel",
            "AutoModelForCausalLM": "modeling_internvl_chat.InternVLChatModel",
        },
        "downsample_ratio": DOWNSAMPLE,
        "dynamic_image_size": True,
        "force_image_size": VISION["image"],
        "llm_config": {
            "architectures": [LLM["architecture"]],
            "attention_dropout": 0.0,
            "bos_token_id": end_of_text,
            "eos_token_id": end_of_text,
            "hidden_act": "silu",
            "hidden_size": LLM["hidden"],
            "initializer_range": 0.02,
            "intermediate_size": LLM["inter"],
            "max_position_embeddings": 32768,
            "max_window_layers": 70,
            "model_type": LLM["family"],
            "num_attention_heads": LLM["heads"],
            "num_hidden_layers": LLM["layers"],
            "num_key_value_heads": LLM["kv_heads"],
            "rms_norm_eps": RIGHT.rms_eps,
            "rope_scaling": LLM["rope_scaling"],
            "rope_theta": RIGHT.rope_theta,
            "sliding_window": None,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "use_bfloat16": True,
            "use_cache": True,
            "use_sliding_window": False,
            "vocab_size": LLM["vocab"],
            **LLM["own_fields"],
        },
        "max_dynamic_patch": 4,
        "min_dynamic_patch": 1,
        "model_type": "internvl_chat",
        "pad2square": False,
        "ps_version": "v2",
        "select_layer": -1,
        "template": "internvl2_5",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": None,
        "use_backbone_lora": 0,
        "use_llm_lora": 0,
        "use_thumbnail": True,
        "vision_config": {
            "architectures": ["InternVisionModel"],
            "attention_dropout": 0.0,
            "drop_path_rate": 0.0,
            "dropout": 0.0,
            "hidden_act": "gelu",
            "hidden_size": VISION["hidden"],
            "image_size": VISION["image"],
            "initializer_factor": 0.1,
            "initializer_range": 1e-10,
            "intermediate_size": VISION["inter"],
            "layer_norm_eps": RIGHT.vit_eps,
            "model_type": "intern_vit_6b",
            "norm_type": "layer_norm",
            "num_attention_heads": VISION["heads"],
            "num_channels": 3,
            "num_hidden_layers": VISION["layers"],
            "patch_size": VISION["patch"],
            "qk_normalization": False,
            "qkv_bias": True,
            "torch_dtype": "bfloat16",
            "use_bfloat16": True,
            "use_flash_attn": True,
        },
    }


class Draw:
    """Draws named BF16 tensors from one seeded stream.

    Hidden states are kept small (vision variance about 1e-3, token embeddings 0.03) because only
    then does a wrong epsilon show.
    """

    def __init__(self, seed: int):
        self.random = torch.Generator().manual_seed(seed)
        self.tensors: Weights = {}

    def normal(self, name: str, shape: tuple, std: float, mean: float = 0.0):
        values = mean + std * torch.randn(shape, generator=self.random)
        self.tensors[name] = values.to(torch.bfloat16)

    def between(self, name: str, shape: tuple, low: float, high: float):
        values = low + (high - low) * torch.rand(shape, generator=self.random)
        self.tensors[name] = values.to(torch.bfloat16)

    def linear(self, name: str, rows: int, cols: int, gain: float, bias: float | None):
        self.normal(f"{name}.weight", (rows, cols), gain / math.sqrt(cols))
        if bias is not None:
            self.normal(f"{name}.bias", (rows,), bias)

    def norm(self, name: str, size: int, bias: float | None):
        self.normal(f"{name}.weight", (size,), 0.3, mean=1.0)
        if bias is not None:
            self.normal(f"{name}.bias", (size,), bias)


def draw_vision(draw: Draw):
    c, inter, patch = VISION["hidden"], VISION["inter"], VISION["patch"]
    positions = (VISION["image"] // patch) ** 2 + 1
    embeddings = "vision_model.embeddings"
    draw.normal(f"{embeddings}.class_embedding", (1, 1, c), 0.01)
    patch_std = 0.02 / math.sqrt(3 * patch**2)
    draw.normal(f"{embeddings}.patch_embedding.weight", (c, 3, patch, patch), patch_std)
    draw.normal(f"{embeddings}.patch_embedding.bias", (c,), 0.005)
    draw.normal(f"{embeddings}.position_embedding", (1, positions, c), 0.01)
    for index in range(VISION["layers"]):
        layer = f"vision_model.encoder.layers.{index}"
        draw.linear(f"{layer}.attn.qkv", 3 * c, c, 1.3, 0.4)
        draw.linear(f"{layer}.attn.proj", c, c, 1.0, 0.1)
        draw.between(f"{layer}.ls1", (c,), 0.006, 0.03)
        draw.between(f"{layer}.ls2", (c,), 0.003, 0.02)
        draw.linear(f"{layer}.mlp.fc1", inter, c, 1.2, 0.3)
        draw.linear(f"{layer}.mlp.fc2", c, inter, 1.2, 0.1)
        draw.norm(f"{layer}.norm1", c, 0.2)
        draw.norm(f"{layer}.norm2", c, 0.2)


def draw_projector(draw: Draw):
    wide, hidden = 4 * VISION["hidden"], LLM["hidden"]
    draw.norm("mlp1.0", wide, 0.2)
    draw.linear("mlp1.1", hidden, wide, 1.2, 0.3)
    draw.linear("mlp1.3", hidden, hidden, 0.05, 0.01)


def draw_llm(draw: Draw):
    hidden, inter = LLM["hidden"], LLM["inter"]
    q, kv = LLM["heads"] * LLM["head_dim"], LLM["kv_heads"] * LLM["head_dim"]
    qk_bias, v_bias = (0.4, 0.2) if LLM["qkv_bias"] else (None, None)
    draw.normal("language_model.model.embed_tokens.weight", (LLM["vocab"], hidden), 0.03)
    for index in range(LLM["layers"]):
        layer = f"language_model.model.layers.{index}"
        draw.linear(f"{layer}.self_attn.q_proj", q, hidden, 1.3, qk_bias)
        draw.linear(f"{layer}.self_attn.k_proj", kv, hidden, 1.3, qk_bias)
        draw.linear(f"{layer}.self_attn.v_proj", kv, hidden, 1.0, v_bias)
        draw.linear(f"{layer}.self_attn.o_proj", hidden, q, 0.06, None)
        if LLM["qk_norm"]:
            draw.norm(f"{layer}.self_attn.q_norm", LLM["head_dim"], None)
            draw.norm(f"{layer}.self_attn.k_norm", LLM["head_dim"], None)
        draw.linear(f"{layer}.mlp.gate_proj", inter, hidden, 1.2, None)
        draw.linear(f"{layer}.mlp.up_proj", inter, hidden, 1.2, None)
        draw.linear(f"{layer}.mlp.down_proj", hidden, inter, 0.05, None)
        draw.norm(f"{layer}.input_layernorm", hidden, None)
        draw.norm(f"{layer}.post_attention_layernorm", hidden, None)
    draw.norm("language_model.model.norm", hidden, None)
    draw.linear("language_model.lm_head", LLM["vocab"], hidden, 4.0, None)


def draw_weights(seed: int, tokenizer: Tokenizer) -> Weights:
    draw = Draw(seed)
    draw_vision(draw)
    draw_projector(draw)
    draw_llm(draw)
    head = draw.tensors["language_model.lm_head.weight"]
    for token in range(LLM["vocab"]):
        head[token] = (head[token].float() * loudness(tokenizer.decode([token]))).to(head.dtype)
    return draw.tensors


def loudness(text: str) -> float:
    """Scale of a token's head row: greedy answers should be readable, special tokens rare."""
    if not (text.isascii() and text.isprintable() and text):
        return 0.25
    return 1.0 if len(text) > 1 else 0.6


def to_transformers(weights: Weights) -> Weights:
    """Original names -> transformers 5 in-memory names, qkv split in three, widened to float32."""
    renames = [
        (".class_embedding", ".cls_token"),
        (".position_embedding", ".position_embeddings"),
        (".patch_embedding", ".patch_embeddings.projection"),
        ("vision_model.embeddings", "model.vision_tower.embeddings"),
        ("vision_model.encoder.layers", "model.vision_tower.encoder.layer"),
        (".attn.proj", ".attention.projection_layer"),
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


def transformers_model(config: dict, weights: Weights, image_token: int):
    vision, llm = config["vision_config"], config["llm_config"]
    hf_config = InternVLConfig(
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
            rope_parameters=rope_parameters(llm),
            tie_word_embeddings=False,
            **LLM["own_fields"],
        ),
        downsample_ratio=config["downsample_ratio"],
        vision_feature_layer=config["select_layer"],
        image_token_id=image_token,
        image_seq_length=TOKENS_PER_TILE,
        # True by default here, whatever the text config says.
        tie_word_embeddings=False,
        attn_implementation="eager",
    )
    model = InternVLForConditionalGeneration(hf_config).float().eval()
    model.load_state_dict(to_transformers(weights), strict=True)
    embed = model.get_input_embeddings().weight
    assert model.lm_head.weight.data_ptr() != embed.data_ptr(), "the head got tied"
    assert model.config._attn_implementation == "eager"
    rope_type = rope_parameters(llm)["rope_type"]
    assert model.model.language_model.rotary_emb.rope_type == rope_type
    return model


def rope_parameters(llm: dict) -> dict:
    """The rotary settings as transformers 5 takes them."""
    scaling = llm["rope_scaling"]
    if scaling is None:
        return {"rope_theta": llm["rope_theta"], "rope_type": "default"}
    kind, factor = scaling["rope_type"], scaling["factor"]
    return {"rope_theta": llm["rope_theta"], "rope_type": kind, "factor": factor}


def make_pixels(seed: int) -> torch.Tensor:
    """Two tiles of waves and noise, about as wide as ImageNet-normalised pixels: [2, 3, 56, 56]."""
    random = torch.Generator().manual_seed(1000 + seed)
    side = VISION["image"]
    y, x = torch.meshgrid(torch.arange(side) / side, torch.arange(side) / side, indexing="ij")
    tiles = torch.empty(TILES, 3, side, side)
    for tile, channel in itertools.product(range(TILES), range(3)):
        fx, fy, phase = (torch.rand(3, generator=random) * torch.tensor([9.0, 9.0, 6.3])).tolist()
        noise = torch.randn(side, side, generator=random)
        tiles[tile, channel] = torch.sin(fx * x + fy * y + phase) + 0.4 * noise
    return tiles


def render(chat, add_generation_prompt: bool, hf_tokenizer) -> str:
    return hf_tokenizer.apply_chat_template(
        chat, tokenize=False, add_generation_prompt=add_generation_prompt
    )


def image_text() -> str:
    return "<img>" + "<IMG_CONTEXT>" * (TOKENS_PER_TILE * TILES) + "</img>"


@dataclass
class Golden:
    """What transformers computed for one seed."""

    seed: int
    tensors: Weights
    texts: dict[str, str | float]


def greedy(model, ids: torch.Tensor, pixels: torch.Tensor | None) -> torch.Tensor:
    """NEW_TOKENS greedy tokens after ids [1, n], through transformers' own KV cache."""
    given = {} if pixels is None else {"pixel_values": pixels}
    out = model.generate(
        **given,
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        eos_token_id=None,
        pad_token_id=0,
    )
    new = out[0, -NEW_TOKENS:]
    assert out.shape[1] == ids.shape[1] + NEW_TOKENS
    return new


def compute(model, seed: int, tokenizer: Tokenizer, hf_tokenizer) -> Golden:
    text = render(TEXT_PROMPT, True, hf_tokenizer)
    picture = render(IMAGE_PROMPT, True, hf_tokenizer).replace("<image>", image_text())
    pixels = make_pixels(seed)
    text_ids = torch.tensor([tokenizer.encode(text).ids])
    image_ids = torch.tensor([tokenizer.encode(picture).ids])
    with torch.no_grad():
        embeds = model.get_image_features(pixels, return_dict=True).pooler_output
        text_logits = model(input_ids=text_ids).logits[0]
        image_logits = model(input_ids=image_ids, pixel_values=pixels).logits[0]
        greedy_text = greedy(model, text_ids, None)
        greedy_image = greedy(model, image_ids, pixels)
    tensors = {
        "pixel_values": pixels,
        "image_embeds": embeds,
        "text_ids": text_ids,
        "text_logits": text_logits,
        "image_ids": image_ids,
        "image_logits": image_logits,
        "greedy_text_ids": greedy_text,
        "greedy_image_ids": greedy_image,
    }
    texts = {
        "text_prompt": text,
        "image_prompt": picture,
        "greedy_text": tokenizer.decode(greedy_text.tolist()),
        "greedy_image": tokenizer.decode(greedy_image.tolist()),
    }
    return Golden(seed, tensors, texts)


def plain_shape(tokenizer: Tokenizer) -> Shape:
    return Shape(
        vision_layers=VISION["layers"],
        vision_heads=VISION["heads"],
        patch=VISION["patch"],
        llm_layers=LLM["layers"],
        heads=LLM["heads"],
        kv_heads=LLM["kv_heads"],
        image_token=tokenizer.token_to_id("<IMG_CONTEXT>"),
    )


def off(got: torch.Tensor, want: torch.Tensor) -> float:
    """Largest error as a part of the largest wanted value."""
    return ((got.double() - want.double()).abs().max() / want.double().abs().max()).item()


def margin(logits: torch.Tensor) -> float:
    """Smallest lead of top-1 over top-2 in rows [k, vocab], as a part of the largest logit."""
    top = logits.topk(2, -1).values
    return ((top[:, 0] - top[:, 1]).min() / logits.abs().max()).item()


def greedy_problem(golden: Golden, weights: Weights, shape: Shape) -> str | None:
    """Why this seed will not do, or None; the float64 pass scores each greedy step."""
    tensors = golden.tensors
    wide = {name: tensor.double() for name, tensor in weights.items()}
    pixels = tensors["pixel_values"].double()
    images = plain_forward.embed_tiles(wide, pixels, shape, RIGHT)
    for kind, given in (("text", None), ("image", images)):
        new = tensors[f"greedy_{kind}_ids"]
        prompt = tensors[f"{kind}_ids"][0]
        if new.max() >= LLM["vocab"] - len(SPECIAL):
            return f"{kind}: a special token"
        if new.unique().numel() < DISTINCT_MIN:
            return f"{kind}: repeats itself"
        forced = plain_forward.logits(wide, torch.cat([prompt, new]), given, shape, RIGHT)
        steps = forced[len(prompt) - 1 : -1]
        assert margin(steps) < 1e-4 or (steps.argmax(-1) == new).all(), "greedy tokens disagree"
        if margin(steps) < MARGIN:
            return f"{kind}: margin {margin(steps):.4f}"
        golden.texts[f"greedy_{kind}_margin"] = round(margin(steps), 4)
    return None


def check_agreement(golden: Golden, weights: Weights, shape: Shape) -> dict[str, float]:
    """The float64 second opinion on every number; asserts AGREEMENT."""
    tensors = golden.tensors
    wide = {name: tensor.double() for name, tensor in weights.items()}
    pixels = tensors["pixel_values"].double()
    images = plain_forward.embed_tiles(wide, pixels, shape, RIGHT)
    found = {
        "image_embeds": images,
        "text_logits": plain_forward.logits(wide, tensors["text_ids"][0], None, shape, RIGHT),
        "image_logits": plain_forward.logits(wide, tensors["image_ids"][0], images, shape, RIGHT),
    }
    errors = {name: off(tensors[name], value) for name, value in found.items()}
    for name, error in errors.items():
        assert error <= AGREEMENT, f"{name}: {error:.2e}"
    return errors


def spoilt(wide: Weights, change) -> Weights:
    """A copy of the weights with change(name, tensor) applied to each."""
    return {name: change(name, tensor) for name, tensor in wide.items()}


def swapped(wide: Weights, one: str, other: str) -> Weights:
    """A copy in which the tensors of the two names have changed places."""

    def partner(name: str) -> str:
        if one in name:
            return name.replace(one, other)
        return name.replace(other, one)

    return {name: wide[partner(name)] for name in wide}


def key_first(fused: torch.Tensor) -> torch.Tensor:
    """Fused q|k|v rows as k|q|v."""
    q, k, v = fused.chunk(3)
    return torch.cat([k, q, v])


def without(wide: Weights, part: str) -> Weights:
    return spoilt(wide, lambda name, tensor: tensor * 0 if part in name else tensor)


def mistakes(wide: Weights, pixels: torch.Tensor) -> dict[str, tuple]:
    """Common mistakes as (weights, pixels, semantics)."""
    patch = "patch_embedding.weight"

    def wrong(**choice):
        return wide, pixels, replace(RIGHT, **choice)

    def weights(changed: Weights):
        return changed, pixels, RIGHT

    return decoder_mistakes(wide, pixels) | {
        "ViT eps 1e-5": wrong(vit_eps=1e-5),
        "projector eps 1e-6": wrong(projector_eps=1e-6),
        "RMSNorm eps 1e-5": wrong(rms_eps=1e-5),
        "RoPE theta 10000": wrong(rope_theta=1e4),
        "GELU by tanh": wrong(gelu="tanh"),
        "qkv split per head": wrong(qkv_layout="per head"),
        "pixel shuffle v1": wrong(shuffle="v1"),
        "last row dropped, not the class row": wrong(dropped_row="last"),
        "ls1 and ls2 exchanged": wrong(ls_first="ls2"),
        "RoPE on neighbouring pairs": wrong(rope_pairs="neighbours"),
        "kv head by modulo": wrong(kv_of_head="modulo"),
        "no causal mask": wrong(causal=False),
        "no final norm": wrong(final_norm=False),
        "tied head": wrong(lm_head="language_model.model.embed_tokens.weight"),
        "q and k rows of qkv exchanged": weights(
            spoilt(wide, lambda name, t: key_first(t) if ".qkv." in name else t)
        ),
        "norm1 and norm2 exchanged": weights(swapped(wide, ".norm1.", ".norm2.")),
        "LLM norms exchanged": weights(
            swapped(wide, ".input_layernorm.", ".post_attention_layernorm.")
        ),
        "gate and up exchanged": weights(swapped(wide, ".gate_proj.", ".up_proj.")),
        "no qkv bias in the ViT": weights(without(wide, "qkv.bias")),
        "no position embedding": weights(without(wide, "position_embedding")),
        "no class embedding": weights(without(wide, "class_embedding")),
        "no patch bias": weights(without(wide, "patch_embedding.bias")),
        "patches read by columns": weights(
            spoilt(wide, lambda name, t: t.transpose(2, 3) if name.endswith(patch) else t)
        ),
        "channels BGR": weights(
            spoilt(wide, lambda name, t: t.flip(1) if name.endswith(patch) else t)
        ),
        "tiles exchanged": (wide, pixels.flip(0), RIGHT),
        "last ViT layer left out": weights(without(wide, "encoder.layers.2.ls")),
        "last LLM layer left out": weights(
            without(without(wide, "layers.2.self_attn.o_proj"), "layers.2.mlp.down_proj")
        ),
    }


def decoder_mistakes(wide: Weights, pixels: torch.Tensor) -> dict[str, tuple]:
    """Mistakes about what only one family of decoders has."""
    found = {}
    for part in "qkv" if LLM["qkv_bias"] else "":
        lacking = without(wide, f"{part}_proj.bias")
        found[f"no {part} bias in the LLM"] = lacking, pixels, RIGHT
    if LLM["qk_norm"]:
        for norm in ("q_norm", "k_norm"):
            left = {name: tensor for name, tensor in wide.items() if norm not in name}
            found[f"no {norm}"] = left, pixels, RIGHT
        for order in ("after rope", "whole row"):
            found[f"q and k normed {order}"] = wide, pixels, replace(RIGHT, qk_norm=order)
        found["q_norm and k_norm exchanged"] = swapped(wide, ".q_norm.", ".k_norm."), pixels, RIGHT
    return found


def check_mistakes(golden: Golden, weights: Weights, shape: Shape) -> dict[str, float]:
    """How far each mistake moves image_logits; asserts that each would show."""
    wide = {name: tensor.double() for name, tensor in weights.items()}
    given = golden.tensors["pixel_values"].double()
    ids, want = golden.tensors["image_ids"][0], golden.tensors["image_logits"]
    effects = {}
    for name, (w, pixels, semantics) in mistakes(wide, given).items():
        images = plain_forward.embed_tiles(w, pixels, shape, semantics)
        effects[name] = off(plain_forward.logits(w, ids, images, shape, semantics), want)
        assert effects[name] >= SHOWS, f"{name} moves the logits by {effects[name]:.1e} only"
    return effects


def first_good(seeds, config: dict, tokenizer: Tokenizer, hf_tokenizer) -> tuple[Golden, Weights]:
    """The goldens and weights of the first seed without a greedy problem."""
    shape = plain_shape(tokenizer)
    for seed in seeds:
        weights = draw_weights(seed, tokenizer)
        model = transformers_model(config, weights, shape.image_token)
        golden = compute(model, seed, tokenizer, hf_tokenizer)
        problem = greedy_problem(golden, weights, shape)
        print(f"seed {seed}: {problem or 'good'}", flush=True)
        if problem is None:
            return golden, weights
    raise SystemExit("no seed has clear greedy answers: run with --search and put it in SEED")


def write_json(path: Path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_checkpoint(config: dict, weights: Weights):
    contiguous = {name: tensor.contiguous() for name, tensor in weights.items()}
    save_file(contiguous, CHECKPOINT / "model.safetensors", metadata={"format": "pt"})
    write_json(CHECKPOINT / "config.json", config)


def write_hf_layout(config: dict, weights: Weights, image_token: int):
    """What transformers saves of the model: config.json, and name, type and shape of each tensor."""
    model = transformers_model(config, weights, image_token).to(torch.bfloat16)
    (HERE / "hf").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as saved:
        model.save_pretrained(saved)
        shutil.copy(Path(saved) / "config.json", HERE / "hf" / "config.json")
        tensors = load_file(Path(saved) / "model.safetensors")
    shapes = {name: list(tensor.shape) for name, tensor in sorted(tensors.items())}
    assert all(tensor.dtype == torch.bfloat16 for tensor in tensors.values())
    lines = ",\n".join(f"  {json.dumps(name)}: {shape}" for name, shape in shapes.items())
    (HERE / "hf" / "tensors.json").write_text(f"{{\n{lines}\n}}\n")


def write_golden(golden: Golden):
    tensors = {name: tensor.contiguous() for name, tensor in golden.tensors.items()}
    save_file(tensors, HERE / "golden.safetensors")
    about = {
        "seed": golden.seed,
        "torch": torch.__version__.split("+")[0],
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        **golden.texts,
    }
    write_json(HERE / "golden.json", about)


def write_cases(path: Path, cases: list[dict]):
    """A JSON array, one case a line, in ASCII so that no editor normalises the odd characters."""
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    path.write_text(f"[\n{lines}\n]\n")


def write_tokenizer_golden(tokenizer: Tokenizer, hf_tokenizer):
    cases = []
    for text in TRICKY_TEXTS:
        ids = tokenizer.encode(text).ids
        assert hf_tokenizer(text, add_special_tokens=False).input_ids == ids, text
        cases.append(
            {
                "text": text,
                "ids": ids,
                "decoded": tokenizer.decode(ids, skip_special_tokens=False),
                "decoded_without_special": tokenizer.decode(ids, skip_special_tokens=True),
            }
        )
    write_cases(HERE / "tokenizer_golden.json", cases)


def write_template_golden(hf_tokenizer):
    cases = [
        {"messages": chat, "add_generation_prompt": add, "text": render(chat, add, hf_tokenizer)}
        for chat, add in CHATS
    ]
    write_cases(HERE / "template_golden.json", cases)


def main(with_text_cases: bool = True):
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    CHECKPOINT.mkdir(exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save(str(CHECKPOINT / "tokenizer.json"))
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    settings = tokenizer_config(tokenizer)
    write_json(CHECKPOINT / "tokenizer_config.json", settings)
    hf_tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(CHECKPOINT / "tokenizer.json"), chat_template=settings["chat_template"]
    )
    if with_text_cases:
        write_tokenizer_golden(tokenizer, hf_tokenizer)
        write_template_golden(hf_tokenizer)

    config = model_config(tokenizer)
    seeds = itertools.count(1) if "--search" in sys.argv else [SEED]
    golden, weights = first_good(seeds, config, tokenizer, hf_tokenizer)
    write_checkpoint(config, weights)
    write_golden(golden)
    if with_text_cases:
        write_hf_layout(config, weights, tokenizer.token_to_id("<IMG_CONTEXT>"))

    stored = load_file(CHECKPOINT / "model.safetensors")
    shape = plain_shape(tokenizer)
    for name, error in check_agreement(golden, stored, shape).items():
        print(f"float32 against float64, {name}: {error:.1e}")
    for name, effect in check_mistakes(golden, stored, shape).items():
        print(f"mistake shows, {name}: {effect:.1e}")
    for name in ("text_logits", "image_logits", "image_embeds"):
        tensor = golden.tensors[name]
        spread = f"std {tensor.std():.3f} largest {tensor.abs().max():.2f}"
        print(f"{name}: {list(tensor.shape)} {spread}")
    for name, text in golden.texts.items():
        print(f"{name}: {text!r}")


if __name__ == "__main__":
    main()
