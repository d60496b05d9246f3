"""Writes the decoder of a checkpoint as GGUF, from which llama.cpp runs and smelt builds its engine.

    write_gguf.py CHECKPOINT OUT q4|q8|bf16 [words]

One file serves both sides, so the integers and scales of every weight are equal.  Under q4 layers
are Q4_0 and the embedding Q8_0, under q8 all is Q8_0.  The head is tied to the embedding, as it is
in the models whose sizes these are: the checkpoint's own `lm_head` is left out.  With `words` the
file holds the checkpoint's tokenizer and chat template too, for servers.  Prints one line of JSON:
`bytes`, what all tensors take, which is what a token reads.
"""

import json
import sys
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter, TokenType
from gguf.quants import quantize

PREFIX = "language_model.model."
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
LAYERS = {"q4": Type.Q4_0, "q8": Type.Q8_0, "bf16": Type.BF16}
EMBEDDING = {"q4": Type.Q8_0, "q8": Type.Q8_0, "bf16": Type.BF16}


def tensors(path, prefixes):
    """(name, bf16 bits) of the tensors whose names begin so, in the order of the file."""
    blob = np.memmap(path, np.uint8, "r")
    header_bytes = int.from_bytes(blob[:8].tobytes(), "little")
    header = json.loads(blob[8 : 8 + header_bytes].tobytes())
    for name, about in header.items():
        if name.startswith(prefixes):
            begin, end = (8 + header_bytes + offset for offset in about["data_offsets"])
            yield name, blob[begin:end].view("<u2").reshape(about["shape"])


def renamed(name):
    if name == "embed_tokens.weight":
        return "token_embd.weight"
    if name == "norm.weight":
        return "output_norm.weight"
    _, layer, rest = name.split(".", 2)
    part, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{PARTS[part]}.{kind}"


def describe(writer, llm):
    """The metadata that both readers want."""
    heads = llm["num_attention_heads"]
    head_dim = llm.get("head_dim") or llm["hidden_size"] // heads
    writer.add_context_length(llm["max_position_embeddings"])
    writer.add_embedding_length(llm["hidden_size"])
    writer.add_block_count(llm["num_hidden_layers"])
    writer.add_feed_forward_length(llm["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(llm["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_freq_base(llm["rope_theta"])
    writer.add_layer_norm_rms_eps(llm["rms_norm_eps"])
    writer.add_vocab_size(llm["vocab_size"])


def describe_words(writer, checkpoint, vocab):
    """A byte-level tokenizer as llama.cpp reads it; tokens without a word get one nobody says."""
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    words = [f"[PAD{token}]" for token in range(vocab)]
    kinds = [TokenType.UNUSED] * vocab
    for word, token in tokenizer["model"]["vocab"].items():
        words[token], kinds[token] = word, TokenType.NORMAL
    for added in tokenizer["added_tokens"]:
        kind = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
        words[added["id"]], kinds[added["id"]] = added["content"], kind
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    config = json.loads((checkpoint / "tokenizer_config.json").read_text())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(words)
    writer.add_token_types(kinds)
    # Synthetic vocabularies merge nothing, and llama.cpp insists on a merge: of two zero bytes.
    writer.add_token_merges(merges or ["\u0100 \u0100"])
    writer.add_add_bos_token(False)
    writer.add_eos_token_id(words.index(config["eos_token"]))
    writer.add_chat_template(config["chat_template"])


def main():
    checkpoint, out, weights = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    has_words = "words" in sys.argv[4:]
    llm = json.loads((checkpoint / "config.json").read_text())["llm_config"]
    writer = GGUFWriter(out, llm["model_type"], use_temp_file=True)
    describe(writer, llm)
    if has_words:
        describe_words(writer, checkpoint, llm["vocab_size"])
    else:
        # Tokens are numbers here.
        writer.add_tokenizer_model("none")
    total = 0
    for name, bits in tensors(checkpoint / "model.safetensors", (PREFIX,)):
        name = name.removeprefix(PREFIX)
        wide = (bits.astype("<u4") << 16).view("<f4")
        kind = EMBEDDING[weights] if name == "embed_tokens.weight" else LAYERS[weights]
        # Norms and biases are vectors, which llama.cpp takes as f32 alone.
        data = wide if wide.ndim == 1 else quantize(wide, kind)
        writer.add_tensor(renamed(name), data, raw_dtype=None if wide.ndim == 1 else kind)
        total += data.nbytes
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(json.dumps({"bytes": total}))


if __name__ == "__main__":
    main()
