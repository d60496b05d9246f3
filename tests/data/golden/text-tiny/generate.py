"""Makes the tiny text-only checkpoints beside this folder and their golden vectors.

Run from anywhere: `python generate.py`; it rewrites `../NAME/checkpoint/` and
`../NAME/cases.safetensors` for every entry of MODELS, byte for byte the same with these versions.

Made with Python 3.11, torch 2.15.0, transformers 5.23.0, safetensors 0.8.0
(`pip install torch transformers safetensors`).

Flow: a configuration as publishers write it -> random weights, rounded to the types they are stored
in -> the numbers from transformers in float32 (a prompt with left padding, then a step upon its
cache) -> proof that each common mistake would show -> one file or shards with an index.
"""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

GOLDEN = Path(__file__).resolve().parent.parent

BATCH, PROMPT, STEP, PADDING = 2, 9, 3, 2
"""Sequences; tokens of the prompt and of the step; places left of the second sequence's first token."""

SHOWS = 1e-3
"""Least effect of a mistake, as a part of the largest logit."""

SIZES = dict(
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    intermediate_size=80,
    vocab_size=160,
    hidden_act="silu",
    max_position_embeddings=512,
)
LLAMA3_ROPE = dict(
    factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
)
"""With theta 500000 and heads of 16 the eight frequencies fall in all three bands: one stays, one
is blended, six are divided."""
YARN_ROPE = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
"""With theta 10000 and heads of 16 the first frequency stays, the next two are blended and five are
divided; cosines and sines are multiplied by 1.14."""


@dataclass
class Model:
    name: str
    config: dict
    seed: int
    dtypes: dict = field(default_factory=dict)
    """Part of a tensor's name -> its stored type; the first that fits counts, "" fits all."""
    shards: int = 1


def qwen2(**own) -> dict:
    return SIZES | dict(
        architectures=["Qwen2ForCausalLM"],
        model_type="qwen2",
        rms_norm_eps=1e-6,
        rope_theta=1000000.0,
        use_sliding_window=False,
    ) | own


def qwen3(**own) -> dict:
    return SIZES | dict(
        architectures=["Qwen3ForCausalLM"],
        model_type="qwen3",
        head_dim=16,
        attention_bias=False,
        rms_norm_eps=1e-6,
        use_sliding_window=False,
    ) | own


def llama(**own) -> dict:
    return SIZES | dict(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        hidden_size=64,
        num_attention_heads=4,
        attention_bias=False,
        mlp_bias=False,
        pretraining_tp=1,
        rms_norm_eps=1e-5,
    ) | own


BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32

MODELS = [
    Model("qwen2-tiny", qwen2(tie_word_embeddings=False), 11, {"": BF16}),
    Model("qwen2_5-tiny", qwen2(tie_word_embeddings=True), 12, {"": F16}, shards=2),
    Model(
        "qwen3-tiny",
        qwen3(tie_word_embeddings=False, rope_theta=1000000.0),
        13,
        {"": F32},
        shards=3,
    ),
    Model(
        "qwen3-tied-tiny",
        qwen3(
            tie_word_embeddings=True,
            rope_parameters=dict(rope_theta=1000000.0, rope_type="default"),
        ),
        14,
        {"": BF16},
    ),
    Model(
        "llama3-tiny",
        llama(
            tie_word_embeddings=False,
            rope_theta=500000.0,
            rope_scaling=dict(rope_type="llama3", **LLAMA3_ROPE),
        ),
        15,
        {"norm": F32, "lm_head": F16, "": BF16},
    ),
    Model(
        "llama3-tied-tiny",
        llama(
            tie_word_embeddings=True,
            head_dim=16,
            rope_parameters=dict(rope_theta=500000.0, rope_type="llama3", **LLAMA3_ROPE),
        ),
        16,
        {"": BF16},
        shards=2,
    ),
    Model(
        "qwen3-yarn-tiny",
        qwen3(
            tie_word_embeddings=True,
            attention_bias=True,
            rope_theta=10000.0,
            rope_scaling=YARN_ROPE,
        ),
        17,
        {"": BF16},
    ),
    Model(
        "qwen2-yarn-tiny",
        qwen2(
            tie_word_embeddings=True,
            rope_parameters=dict(
                YARN_ROPE,
                rope_theta=10000.0,
                beta_fast=6,
                beta_slow=0.3,
                mscale=0.8,
                mscale_all_dim=0.3,
                truncate=False,
            ),
        ),
        18,
        {"": BF16},
    ),
    Model(
        "llama-linear-tiny",
        llama(
            tie_word_embeddings=True,
            attention_bias=True,
            rope_theta=10000.0,
            rope_scaling=dict(type="linear", factor=2.5),
        ),
        19,
        {"": BF16},
    ),
    Model(
        "llama-dynamic-tiny",
        llama(
            tie_word_embeddings=True,
            max_position_embeddings=PROMPT + STEP,
            rope_theta=500000.0,
            rope_scaling=dict(type="dynamic", factor=4.0),
        ),
        20,
        {"": BF16},
    ),
]


def drawn(name: str, shape: torch.Size, random: torch.Generator) -> torch.Tensor:
    """Weights under which attention is uneven and an epsilon shows."""
    noise = torch.randn(shape, generator=random)
    if "norm" in name:
        return 1 + 0.2 * noise
    if name.endswith("bias"):
        return 0.4 * noise
    if "embed_tokens" in name:
        return 0.05 * noise
    if "lm_head" in name:
        return 0.15 * noise
    return noise * 1.5 / shape[-1] ** 0.5


def stored(model: Model, network) -> dict[str, torch.Tensor]:
    """The tensors of the checkpoint, each in its stored type.  Tied heads are not stored."""
    random = torch.Generator().manual_seed(model.seed)
    weights = {}
    for name, parameter in sorted(network.named_parameters()):
        dtype = next(dtype for part, dtype in model.dtypes.items() if part in name)
        weights[name] = drawn(name, parameter.shape, random).to(dtype)
    return weights


def network_of(config: dict, weights: dict | None = None):
    """The network in float32, with `weights` where there are any."""
    settings = AutoConfig.for_model(**config)
    network = AutoModelForCausalLM.from_config(settings, attn_implementation="eager").float().eval()
    if weights is not None:
        wide = {name: tensor.float() for name, tensor in weights.items()}
        left = network.load_state_dict(wide, strict=False)
        tied = ["lm_head.weight"] if config["tie_word_embeddings"] else []
        assert left.missing_keys == tied and not left.unexpected_keys, left
        network.tie_weights()
    return network


def positions_of(mask: torch.Tensor) -> torch.Tensor:
    return (mask.cumsum(1) - 1).clamp(min=0)


@torch.no_grad()
def run(network, ids, mask, past=None) -> tuple[torch.Tensor, list]:
    """Logits of `ids`, and keys and values of every layer, those of `past` included."""
    cache = DynamicCache()
    for layer, (key, value) in enumerate(past or []):
        cache.update(key.clone(), value.clone(), layer)
    positions = positions_of(mask)[:, -ids.shape[1] :]
    out = network(
        input_ids=ids,
        attention_mask=mask,
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
    )
    layers = out.past_key_values.layers
    return out.logits, [(layer.keys, layer.values) for layer in layers]


def cases(network, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """`llm`: the prompt.  `llm-step`: the tokens after it, upon the prompt's cache."""
    prompt, step = ids[:, :PROMPT], ids[:, PROMPT:]
    logits, past = run(network, prompt, mask[:, :PROMPT])
    tensors = case("llm", prompt, mask[:, :PROMPT], [], logits, past)
    logits, present = run(network, step, mask, past)
    return tensors | case("llm-step", step, mask, past, logits, present)


def case(name, ids, mask, past, logits, present) -> dict[str, torch.Tensor]:
    tensors = {
        "in/input_ids": ids,
        "in/position_ids": positions_of(mask)[:, -ids.shape[1] :],
        "in/attention_mask": mask,
        "out/logits": logits,
    }
    for layer, (key, value) in enumerate(past):
        tensors[f"in/past_key_values.{layer}.key"] = key
        tensors[f"in/past_key_values.{layer}.value"] = value
    for layer, (key, value) in enumerate(present):
        tensors[f"out/present.{layer}.key"] = key
        tensors[f"out/present.{layer}.value"] = value
    return {f"{name}/{key}": tensor.clone() for key, tensor in tensors.items()}


def off(found: torch.Tensor, want: torch.Tensor) -> float:
    return ((found - want).abs().max() / want.abs().max()).item()


def check_cache(network, ids, mask, tensors):
    """One pass over all tokens gives what prompt and step give."""
    logits, _ = run(network, ids, mask)
    error = off(tensors["llm-step/out/logits"], logits[:, PROMPT:])
    assert error < 1e-5, error
    return error


def mistakes(model: Model, weights: dict) -> dict[str, tuple[dict, dict]]:
    """Common mistakes as (configuration, weights)."""
    config = model.config

    def changed(part, change):
        return config, {n: change(t) if part in n else t for n, t in weights.items()}

    def configured(**own):
        return {k: v for k, v in config.items() if k != "rope_parameters"} | own, weights

    scaling = dict(config.get("rope_scaling") or config.get("rope_parameters", {}))
    theta = config.get("rope_theta") or scaling["rope_theta"]
    found = {
        "none": (config, weights),
        "other epsilon": configured(
            rms_norm_eps=config["rms_norm_eps"] * 30, rope_theta=theta, rope_scaling=scaling or None
        ),
        "last layer left out": changed("layers.1.mlp.down", torch.zeros_like),
        "no final norm weight": changed("model.norm", torch.ones_like),
    }
    kind = scaling.get("rope_type") or scaling.get("type", "default")
    if kind == "yarn":
        found["plain attention"] = configured(
            rope_theta=theta, rope_scaling=scaling | {"attention_factor": 1.0}
        )
        ends = dict(beta_fast=1000, beta_slow=1000)
        found["no blended band"] = configured(rope_theta=theta, rope_scaling=scaling | ends)
        whole = {"truncate": not scaling.get("truncate", True)}
        found["other borders"] = configured(rope_theta=theta, rope_scaling=scaling | whole)
    if kind in ("yarn", "linear"):
        found["no rope scaling"] = configured(rope_theta=theta, rope_scaling=None)
        found["theta 20000"] = configured(rope_theta=2e4, rope_scaling=scaling | {"rope_theta": 2e4})
    elif kind == "llama3":
        found["no rope scaling"] = configured(rope_theta=theta, rope_scaling=None)
        blend = scaling | {"high_freq_factor": 1.001}
        found["no blended band"] = configured(rope_theta=theta, rope_scaling=blend)
    elif kind == "dynamic":
        own = scaling | {"rope_theta": 1e4}
        found["theta 10000"] = configured(rope_theta=1e4, rope_scaling=own)
    else:
        found["theta 10000"] = configured(rope_theta=1e4)
    for part in ("q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias", "q_norm", "k_norm"):
        if any(part in name for name in weights):
            neutral = torch.zeros_like if "bias" in part else torch.ones_like
            found[f"no {part}"] = changed(part, neutral)
    if not config["tie_word_embeddings"]:
        head = weights["model.embed_tokens.weight"]
        found["tied head"] = config, weights | {"lm_head.weight": head}
    return found


def check_mistakes(model, weights, ids, mask, want):
    for name, (config, wrong) in mistakes(model, weights).items():
        logits, _ = run(network_of(config, wrong), ids, mask)
        # Rows of padding attend to nothing, evenly, so they depend on how many there are.
        seen = mask[:, :PROMPT].bool()
        effect = off(logits[:, :PROMPT][seen], want[seen])
        print(f"  mistake shows, {name}: {effect:.1e}")
        assert effect < 1e-5 if name == "none" else effect >= SHOWS, name


def check_dynamic(model, weights, ids):
    """Frequencies of `dynamic` are plain as far as the positions go, and others for a token more."""
    plain = {name: value for name, value in model.config.items() if name != "rope_scaling"}
    more = torch.cat([ids, ids[:, :1]], dim=1)
    for tokens, shows in ((ids, False), (more, True)):
        found, want = [run(network_of(c, weights), tokens, torch.ones_like(tokens))[0] for c in (model.config, plain)]
        effect = off(found, want)
        print(f"  plain frequencies for {tokens.shape[1]} tokens: {effect:.1e}")
        assert (effect >= SHOWS) if shows else effect == 0, effect


def write_checkpoint(model: Model, weights: dict, folder: Path):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    settings = json.dumps(model.config, indent=2, sort_keys=True)
    (folder / "config.json").write_text(settings + "\n")
    metadata = {"format": "pt"}
    if model.shards == 1:
        save_file(weights, folder / "model.safetensors", metadata=metadata)
        return
    names = sorted(weights)
    per_shard = -(-len(names) // model.shards)
    places = {}
    for shard in range(model.shards):
        file = f"model-{shard + 1:05}-of-{model.shards:05}.safetensors"
        part = names[shard * per_shard : (shard + 1) * per_shard]
        save_file({name: weights[name] for name in part}, folder / file, metadata=metadata)
        places |= dict.fromkeys(part, file)
    total = sum(tensor.nbytes for tensor in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def make(model: Model):
    network = network_of(model.config)
    weights = stored(model, network)
    network = network_of(model.config, weights)
    random = torch.Generator().manual_seed(model.seed + 1000)
    vocab = model.config["vocab_size"]
    ids = torch.randint(vocab, (BATCH, PROMPT + STEP), generator=random)
    mask = torch.ones_like(ids)
    mask[1, :PADDING] = 0
    tensors = cases(network, ids, mask)
    logits = tensors["llm/out/logits"]
    error = check_cache(network, ids, mask, tensors)
    print(f"{model.name}: largest logit {logits.abs().max():.2f}, cache against one pass {error:.1e}")
    check_mistakes(model, weights, ids, mask, logits)
    if (model.config.get("rope_scaling") or {}).get("type") == "dynamic":
        check_dynamic(model, weights, ids)
    write_checkpoint(model, weights, GOLDEN / model.name / "checkpoint")
    save_file(tensors, GOLDEN / model.name / "cases.safetensors")


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for model in MODELS:
        make(model)


if __name__ == "__main__":
    main()
