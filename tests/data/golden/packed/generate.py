"""Makes tiny checkpoints in the formats of other quantisation tools, and their golden logits.

Run from anywhere: `python generate.py`; it rewrites the case directories, `*.gguf` and
`golden.safetensors` beside itself, byte for byte the same with these versions, in some seconds.

Made with Python 3.11, numpy 2.4.6, torch 2.15.0, transformers 5.23.0, safetensors 0.8.0,
compressed-tensors 0.20.0, gguf 0.20.0.

Flow: random decoder weights -> round to nearest per case -> packed by the tool's own package
(compressed-tensors, gguf) or by a numpy transcription of its packing code (AutoAWQ, GPTQ) -> logits of
transformers in float32 with the dequantised weights.  The decoder is that of an InternVL3 model
whose tiny vision tower stays floats, since that is how such checkpoints are published; GGUF files
hold the decoder alone.
"""

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import torch
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
from transformers import Qwen3Config, Qwen3ForCausalLM

HERE = Path(__file__).resolve().parent
GROUP = 32
SIZES = dict(
    hidden_size=64,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=96,
    vocab_size=32,
    rms_norm_eps=1e-6,
    max_position_embeddings=256,
)
THETA = 10000.0
TOKENS = [3, 17, 22, 5, 5, 31, 0, 28, 11, 14]
LINEARS = [
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
]
WATCHED = "model.layers.0.self_attn.k_proj.weight"
"""The weight of which some dequantised rows are kept beside the logits: a whole head."""
LLAMA3 = dict(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=8192,
)
WATCHED_ROWS = 16
LANES_AWQ = [0, 2, 4, 6, 1, 3, 5, 7]


def random(seed):
    return np.random.Generator(np.random.PCG64(seed))


def model_of(kind):
    """A transformers model of `kind` with random weights that bf16 holds."""
    classes = dict(
        qwen2=(Qwen2Config, Qwen2ForCausalLM, {}),
        qwen3=(Qwen3Config, Qwen3ForCausalLM, dict(head_dim=16)),
        llama=(LlamaConfig, LlamaForCausalLM, {}),
    )
    config, model, own = classes[kind]
    rope = dict(rope_theta=THETA, rope_type="default")
    rope = rope | LLAMA3 if kind == "llama" else rope
    config = config(**SIZES, **own, rope_parameters=rope, tie_word_embeddings=False)
    model = model(config).float().eval()
    rng = random(11)
    state = {}
    for name, tensor in model.state_dict().items():
        spread = 1.0 if tensor.ndim == 1 and "norm" in name else 0.0
        scale = 0.1 if tensor.ndim == 1 else 0.6 / np.sqrt(tensor.shape[-1]) * 2
        values = spread + scale * rng.standard_normal(tuple(tensor.shape))
        # Columns of their own size make act-order and zeros matter.
        if tensor.ndim == 2:
            values = values * (1 + 0.5 * rng.random(tensor.shape[-1])) + 0.02
        state[name] = torch.tensor(values, dtype=torch.bfloat16).float()
    model.load_state_dict(state)
    return model, state


def logits(model, state):
    model.load_state_dict(state)
    with torch.no_grad():
        return model(input_ids=torch.tensor([TOKENS])).logits[0].contiguous()


# ---- rounding: every case rounds by itself, so that a packing error cannot hide ----


def rounded(weight, bits, symmetric, order=None, group=GROUP):
    """Levels [out, in] in 0..2^bits, scales and zeros [out, groups], group of each channel."""
    out, width = weight.shape
    group = width if group is None else group
    order = np.arange(width) if order is None else order
    groups = np.empty(width, dtype=np.int32)
    groups[order] = np.arange(width) // group
    top, middle = 2**bits - 1, 2 ** (bits - 1)
    count = -(-width // group)
    scales = np.empty((out, count), dtype=np.float16)
    zeros = np.full((out, count), middle, dtype=np.int64)
    levels = np.empty((out, width), dtype=np.int64)
    for index in range(count):
        inside = groups == index
        part = weight[:, inside]
        if symmetric:
            scale = np.abs(part).max(1) / (middle - 0.5)
        else:
            low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
            scale = (high - low) / top
        scales[:, index] = scale.astype(np.float16)
        real = scales[:, index].astype(np.float32)
        if not symmetric:
            zeros[:, index] = np.clip(np.round(-low / real), 0, top)
        shifted = np.round(part / real[:, None]) + zeros[:, index][:, None]
        levels[:, inside] = np.clip(shifted, 0, top)
    return levels, scales, zeros, groups


def dequantised(levels, scales, zeros, groups):
    steps = levels - zeros[:, groups]
    return steps.astype(np.float32) * scales.astype(np.float32)[:, groups]


# ---- packing, transcribed ----


def words(levels, bits, lanes=None):
    """Packs the last axis of `levels` into int32: AutoAWQ and AutoGPTQ, `pack`."""
    per_word = 32 // bits
    lanes = list(range(per_word)) if lanes is None else lanes
    shape = levels.shape[:-1] + (levels.shape[-1] // per_word, per_word)
    parts = levels.reshape(shape).astype(np.uint32)
    packed = np.zeros(shape[:-1], dtype=np.uint32)
    for lane, source in enumerate(lanes):
        packed |= parts[..., source] << np.uint32(bits * lane)
    return torch.from_numpy(packed.view(np.int32).copy())


def awq(levels, scales, zeros, groups):
    """WQLinear_GEMM.from_linear: everything transposed, packed along the outputs."""
    return dict(
        qweight=words(levels.T.copy(), 4, LANES_AWQ),
        qzeros=words(zeros.T.copy(), 4, LANES_AWQ),
        scales=torch.from_numpy(scales.T.copy()),
    )


def gptq(levels, scales, zeros, groups, bits=4, version=1):
    """QuantLinear.pack: levels packed along the inputs, zeros (less one in version 1) along the outputs."""
    stored = (zeros - (1 if version == 1 else 0)) & (2**bits - 1)
    return dict(
        qweight=words(levels.copy(), bits).T.contiguous(),
        qzeros=words(stored.T.copy(), bits),
        scales=torch.from_numpy(scales.T.copy()),
        g_idx=torch.from_numpy(groups.copy()),
    )


def compressed(levels, scales, zeros, groups, args, act_order):
    """The package's own compressor, given weights that lie on the grid exactly."""
    offset = 2 ** (args.num_bits - 1)
    tensors = dict(
        weight_packed=pack_to_int32(
            torch.from_numpy((levels - offset).astype(np.int8)), args.num_bits
        ),
        weight_scale=torch.from_numpy(scales.copy()),
        weight_shape=torch.tensor(levels.shape),
    )
    if not args.symmetric:
        tensors["weight_zero_point"] = pack_to_int32(
            torch.from_numpy((zeros - offset).astype(np.int8)), args.num_bits, packed_dim=0
        ).contiguous()
    if act_order:
        tensors["weight_g_idx"] = torch.from_numpy(groups.copy())
    else:
        check_compressed(levels, scales, zeros, groups, args, tensors)
    return tensors


def check_compressed(levels, scales, zeros, groups, args, tensors):
    """The package must decompress what we store to the weights that the logits are made of."""
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    state = {name: tensor.clone() for name, tensor in tensors.items()}
    state["weight_scale"] = state["weight_scale"].float()
    back = PackedQuantizationCompressor.decompress(state, scheme)["weight"].numpy()
    expect = dequantised(levels, scales, zeros, groups)
    assert np.abs(back - expect).max() == 0, np.abs(back - expect).max()


# ---- cases ----


def vision(config):
    """A vision tower of random floats, and its fields."""
    rng = random(5)
    width, inter, llm = 8, 12, SIZES["hidden_size"]
    shapes = {
        "vision_model.embeddings.class_embedding": (1, 1, width),
        "vision_model.embeddings.patch_embedding.weight": (width, 3, 14, 14),
        "vision_model.embeddings.patch_embedding.bias": (width,),
        "vision_model.embeddings.position_embedding": (1, 5, width),
        "mlp1.0.weight": (4 * width,),
        "mlp1.0.bias": (4 * width,),
        "mlp1.1.weight": (llm, 4 * width),
        "mlp1.1.bias": (llm,),
        "mlp1.3.weight": (llm, llm),
        "mlp1.3.bias": (llm,),
    }
    layer = "vision_model.encoder.layers.0."
    for name, shape in dict(
        norm1=(width,), norm2=(width,), ls1=(width,), ls2=(width,), qkv=(3 * width, width),
        proj=(width, width), fc1=(inter, width), fc2=(width, inter),
    ).items():
        place = {"qkv": "attn.qkv", "proj": "attn.proj", "fc1": "mlp.fc1", "fc2": "mlp.fc2"}
        if name.startswith("ls"):
            shapes[layer + name] = shape
            continue
        shapes[f"{layer}{place.get(name, name)}.weight"] = shape
        shapes[f"{layer}{place.get(name, name)}.bias"] = shape[:1]
    tensors = {n: torch.tensor(rng.standard_normal(s) * 0.1, dtype=torch.bfloat16) for n, s in shapes.items()}
    fields = dict(
        hidden_size=width, num_hidden_layers=1, num_attention_heads=2, intermediate_size=inter,
        image_size=28, patch_size=14, num_channels=3, layer_norm_eps=1e-6, qkv_bias=True,
        norm_type="layer_norm", qk_normalization=False, hidden_act="gelu",
    )
    return tensors, fields


def internvl(kind, quantization):
    classes = dict(qwen2="Qwen2ForCausalLM", qwen3="Qwen3ForCausalLM")
    own = dict(head_dim=16, attention_bias=False) if kind == "qwen3" else {}
    return dict(
        architectures=["InternVLChatModel"],
        model_type="internvl_chat",
        downsample_ratio=0.5, ps_version="v2", select_layer=-1, force_image_size=28,
        template="internvl2_5", min_dynamic_patch=1, max_dynamic_patch=2, use_thumbnail=True,
        vision_config=vision(None)[1],
        llm_config=dict(
            architectures=[classes[kind]], **SIZES, **own, rope_theta=THETA, hidden_act="silu",
            tie_word_embeddings=False,
        ),
        quantization_config=quantization,
    )


def write_case(name, kind, quantization, pack, bits=4, symmetric=False, act_order=False,
               group=GROUP, idle_bias=False, head=False):
    model, state = model_of(kind)
    rng = random(3)
    stored, floats = dict(vision(None)[0]), dict(state)
    linears = {f"model.layers.{i}.{part}" for i in range(SIZES["num_hidden_layers"]) for part in LINEARS}
    if head:
        linears.add("lm_head")
    for module in sorted(linears):
        weight = state[module + ".weight"].numpy()
        order = rng.permutation(weight.shape[1]) if act_order else None
        parts = rounded(weight, bits, symmetric, order, group)
        floats[module + ".weight"] = torch.from_numpy(dequantised(*parts))
        for part, tensor in pack(*parts).items():
            stored[f"language_model.{module}.{part}"] = tensor.contiguous()
        if idle_bias and module + ".bias" not in state:
            stored[f"language_model.{module}.bias"] = torch.zeros(weight.shape[0], dtype=torch.float16)
    for key, tensor in state.items():
        if key.removesuffix(".weight") not in linears:
            stored["language_model." + key] = tensor.bfloat16()
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(internvl(kind, quantization), indent=1) + "\n")
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    return {f"{name}/logits": logits(model, floats), f"{name}/k_proj": floats[WATCHED][:WATCHED_ROWS].contiguous()}


def awq_config():
    return dict(
        quant_method="awq", version="gemm", bits=4, group_size=GROUP, zero_point=True,
        modules_to_not_convert=["vision_model", "mlp1"],
    )


def gptq_config(bits=4, sym=False, desc_act=False, group=GROUP, version=1):
    return dict(
        quant_method="gptq", bits=bits, group_size=group, sym=sym, desc_act=desc_act,
        checkpoint_format="gptq" if version == 1 else "gptq_v2",
    )


def ct_config(args):
    weights = dict(
        num_bits=args.num_bits, type="int", symmetric=args.symmetric,
        strategy=str(getattr(args.strategy, "value", args.strategy)), group_size=args.group_size,
    )
    return dict(
        quant_method="compressed-tensors", format="pack-quantized",
        config_groups=dict(group_0=dict(targets=["Linear"], weights=weights)),
        ignore=["language_model.lm_head", "re:vision_model.*", "re:mlp1.*"],
    )


def safetensors_cases():
    golden = {}
    golden |= write_case("awq", "qwen2", awq_config(), awq)
    golden |= write_case("gptq", "qwen3", gptq_config(sym=True), gptq, symmetric=True, idle_bias=True)
    golden |= write_case(
        "gptq-act-order", "qwen2", gptq_config(desc_act=True), gptq, act_order=True
    )
    golden |= write_case(
        "gptq-v2", "qwen2", gptq_config(desc_act=True, version=2),
        lambda *parts: gptq(*parts, version=2), act_order=True, head=True,
    )
    golden |= write_case(
        "gptq-int8", "qwen2", gptq_config(bits=8, sym=True, group=-1),
        lambda *parts: gptq(*parts, bits=8), bits=8, symmetric=True, group=None,
    )
    for name, bits, symmetric, act_order, group in [
        ("ct", 4, True, False, GROUP),
        ("ct-asym", 4, False, False, GROUP),
        ("ct-act-order", 4, False, True, GROUP),
        ("ct-int8", 8, True, False, None),
    ]:
        strategy = "channel" if group is None else "group"
        args = QuantizationArgs(
            num_bits=bits, symmetric=symmetric, strategy=strategy, group_size=group
        )
        pack = lambda *parts: compressed(*parts, args, act_order)
        golden |= write_case(
            name, "qwen2", ct_config(args), pack, bits, symmetric, act_order, group
        )
    return golden


# ---- GGUF ----

GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name):
    module, kind = name.rsplit(".", 1)
    if module in GGUF_NAMES:
        return f"{GGUF_NAMES[module]}.{kind}"
    _, _, layer, part = module.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[part]}.{kind}"


def permute(weight, heads):
    """LlamaModel.permute of llama.cpp's convert_hf_to_gguf.py."""
    shape = (heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return weight.reshape(shape).swapaxes(1, 2).reshape(weight.shape)


def unpermute(weight, heads):
    shape = (heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return weight.reshape(shape).swapaxes(1, 2).reshape(weight.shape)


def llama3_factors(dim):
    """LlamaModel.generate_extra_tensors of llama.cpp's convert_hf_to_gguf.py."""
    low, high, old = (LLAMA3[k] for k in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))
    factors = []
    for freq in 1.0 / THETA ** (np.arange(0, dim, 2, dtype=np.float32) / dim):
        wavelength = 2 * np.pi / freq
        if wavelength < old / high:
            factors.append(1.0)
        elif wavelength > old / low:
            factors.append(LLAMA3["factor"])
        else:
            smooth = (old / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / LLAMA3["factor"] + smooth))
    assert len(set(factors)) == 3, factors
    return np.array(factors, dtype=np.float32)


def write_gguf(name, kind, quant):
    model, state = model_of(kind)
    floats = {}
    writer = gguf.GGUFWriter(HERE / f"{name}.gguf", kind)
    writer.add_name("tiny")
    writer.add_context_length(SIZES["max_position_embeddings"])
    writer.add_embedding_length(SIZES["hidden_size"])
    writer.add_block_count(SIZES["num_hidden_layers"])
    writer.add_feed_forward_length(SIZES["intermediate_size"])
    writer.add_head_count(SIZES["num_attention_heads"])
    writer.add_head_count_kv(SIZES["num_key_value_heads"])
    writer.add_key_length(16)
    writer.add_layer_norm_rms_eps(SIZES["rms_norm_eps"])
    writer.add_rope_freq_base(THETA)
    if kind == "llama":
        writer.add_tensor("rope_freqs.weight", llama3_factors(16))
    writer.add_token_list([f"<{i}>" for i in range(SIZES["vocab_size"])])
    for key, tensor in state.items():
        values, heads = tensor.numpy(), 0
        if kind == "llama" and "q_proj" in key:
            heads = SIZES["num_attention_heads"]
        if kind == "llama" and "k_proj" in key:
            heads = SIZES["num_key_value_heads"]
        values = permute(values, heads) if heads else values
        kept = gguf.GGMLQuantizationType.F32 if values.ndim == 1 else quant
        data = gguf.quantize(np.ascontiguousarray(values), kept)
        back = gguf.dequantize(data, kept).reshape(values.shape)
        floats[key] = torch.from_numpy((unpermute(back, heads) if heads else back).copy())
        writer.add_tensor(gguf_name(key), data, raw_dtype=kept)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {f"{name}/logits": logits(model, floats), f"{name}/k_proj": floats[WATCHED][:WATCHED_ROWS].contiguous()}


def gguf_cases():
    kinds = gguf.GGMLQuantizationType
    golden = {}
    golden |= write_gguf("qwen2-q8_0", "qwen2", kinds.Q8_0)
    golden |= write_gguf("qwen3-q4_0", "qwen3", kinds.Q4_0)
    golden |= write_gguf("llama-q4_0", "llama", kinds.Q4_0)
    golden |= write_gguf("llama-bf16", "llama", kinds.BF16)
    return golden


def main():
    torch.set_num_threads(1)
    golden = {"tokens": torch.tensor(TOKENS)} | safetensors_cases() | gguf_cases()
    save_file(golden, HERE / "golden.safetensors")
    (HERE / "golden.safetensors").chmod(0o644)


if __name__ == "__main__":
    main()
