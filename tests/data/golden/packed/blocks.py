"""Makes tiny GGUF files of every kind of block that keeps minima, factors or odd bits, and their golden
values.

Run from anywhere: `python blocks.py`; it rewrites `blocks-*.gguf` and `blocks.safetensors` beside
itself, byte for byte the same with these versions, in some seconds.

Made with Python 3.11, numpy 2.4.6, torch 2.15.0, transformers 5.23.0, safetensors 0.8.0, gguf 0.19.0.

Flow: random decoder weights -> blocks by the gguf package, or, for the K kinds, which it does not
write, blocks of random bytes whose two f16 make weights of the usual size -> floats by the package's
`dequantize` -> logits of transformers in float32 with these floats.  Rows of the embedding that no token
asks for hold extremes: scales of 0, negative, subnormal and largest ones, all levels and factors.
"""

from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
from transformers import Qwen3Config, Qwen3ForCausalLM

HERE = Path(__file__).resolve().parent
KINDS = gguf.GGMLQuantizationType
TOKENS = [3, 17, 22, 5, 5, 31, 0, 28, 11, 14]
THETA = 10000.0
HEAD = 16
HALVES = {"Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
"""Where the f16 of a block lie."""
EXTREMES = [0.0, -0.0, 6e-8, -6e-8, 6.1e-5, -1.0, 1.0, 333.3, -0.037]
LINEARS = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}


def random(seed):
    return np.random.Generator(np.random.PCG64(seed))


def sizes(hidden):
    return dict(
        hidden_size=hidden, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=96, vocab_size=32, rms_norm_eps=1e-6, max_position_embeddings=256,
    )


def model_of(kind, hidden):
    classes = dict(
        qwen2=(Qwen2Config, Qwen2ForCausalLM, {}), qwen3=(Qwen3Config, Qwen3ForCausalLM, {}),
        llama=(LlamaConfig, LlamaForCausalLM, {}),
    )
    config, model, own = classes[kind]
    rope = dict(rope_theta=THETA, rope_type="default")
    config = config(**sizes(hidden), head_dim=HEAD, rope_parameters=rope, tie_word_embeddings=False)
    model = model(config).float().eval()
    rng = random(11)
    state = {}
    for name, tensor in model.state_dict().items():
        scale = 0.15 if tensor.ndim == 2 else 0.1
        values = rng.standard_normal(tuple(tensor.shape)) * scale + (0 if tensor.ndim == 2 else 1)
        state[name] = values.astype(np.float32)
    return model, state


def name_of(key):
    module, kind = key.rsplit(".", 1)
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    if module in whole:
        return f"{whole[module]}.{kind}"
    _, _, layer, part = module.split(".", 3)
    return f"blk.{layer}.{LINEARS[part]}.{kind}"


def random_blocks(rng, quant, shape, half):
    """Rows of random bytes whose f16 are what `half` draws."""
    elements, size = gguf.GGML_QUANT_SIZES[quant]
    blocks = rng.integers(0, 256, (shape[0] * shape[1] // elements, size), dtype=np.uint8)
    for index, place in enumerate(HALVES[quant.name]):
        drawn = half(index, len(blocks)).astype(np.float16)
        blocks[:, place : place + 2] = drawn.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(shape[0], -1)


def stored(rng, quant, values):
    """The bytes of `values`, or of something as large in a K kind."""
    if not quant.name.endswith("_K"):
        return gguf.quantize(np.ascontiguousarray(values), quant)
    # A level times a factor is 7 * 32 or so, and minima are as large, so that numbers are around 0.
    usual = {"Q4_K": [2.4e-4, 1.8e-3], "Q5_K": [1.2e-4, 1.8e-3], "Q6_K": [1.1e-4]}[quant.name]
    return random_blocks(rng, quant, values.shape, lambda i, n: usual[i] * rng.uniform(0.5, 1.5, n))


def extreme(rng, quant, width):
    """A row of every sort of scale."""
    return random_blocks(rng, quant, (1, width), lambda i, n: rng.choice(EXTREMES, n))


def permute(rows, heads):
    """LlamaModel.permute of llama.cpp's convert_hf_to_gguf.py."""
    shape = (heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return rows.reshape(shape).swapaxes(1, 2).reshape(rows.shape)


def logits(model, floats):
    model.load_state_dict({name: torch.from_numpy(values) for name, values in floats.items()})
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0].contiguous()


def write(case, kind, hidden, quant, other):
    """`other` is the kind of rows that no whole number of blocks of `quant` fits."""
    model, state = model_of(kind, hidden)
    rng, floats = random(23), {}
    writer = gguf.GGUFWriter(HERE / f"{case}.gguf", kind)
    writer.add_name("tiny")
    writer.add_context_length(256)
    writer.add_embedding_length(hidden)
    writer.add_block_count(1)
    writer.add_feed_forward_length(96)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_key_length(HEAD)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(THETA)
    writer.add_token_list([f"<{i}>" for i in range(32)])
    for key, values in state.items():
        if values.ndim == 1:
            floats[key] = values
            writer.add_tensor(name_of(key), values)
            continue
        own = quant if values.shape[1] % gguf.GGML_QUANT_SIZES[quant][0] == 0 else other
        data = stored(rng, own, values)
        if key == "model.embed_tokens.weight":
            for row in sorted(set(range(32)) - set(TOKENS)):
                data[row] = extreme(rng, own, values.shape[1])
        floats[key] = gguf.dequantize(data, own).reshape(values.shape).copy()
        heads = {"q_proj": 2, "k_proj": 1}.get(key.split(".")[-2], 0) if kind == "llama" else 0
        writer.add_tensor(name_of(key), permute(data, heads) if heads else data, raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    golden = {"logits": logits(model, floats)}
    for key in ["model.embed_tokens", "model.layers.0.self_attn.k_proj", "model.layers.0.mlp.down_proj"]:
        golden[key.split(".")[-1]] = torch.from_numpy(floats[key + ".weight"][:32].copy())
    return {f"{case}/{name}": tensor for name, tensor in golden.items()}


def main():
    torch.set_num_threads(1)
    golden = {"tokens": torch.tensor(TOKENS)}
    golden |= write("blocks-q4_1", "llama", 64, KINDS.Q4_1, None)
    golden |= write("blocks-q5_0", "qwen2", 64, KINDS.Q5_0, None)
    golden |= write("blocks-q5_1", "qwen3", 64, KINDS.Q5_1, None)
    golden |= write("blocks-q4_k", "llama", 256, KINDS.Q4_K, KINDS.Q5_0)
    golden |= write("blocks-q5_k", "qwen2", 256, KINDS.Q5_K, KINDS.Q5_1)
    golden |= write("blocks-q6_k", "qwen3", 256, KINDS.Q6_K, KINDS.Q8_0)
    save_file(golden, HERE / "blocks.safetensors")
    (HERE / "blocks.safetensors").chmod(0o644)


if __name__ == "__main__":
    main()
