"""Writes the vision tower and projector of an InternVL checkpoint as the GGUF that llama.cpp takes by --mmproj.

    write_mmproj.py CHECKPOINT OUT q8|f16

Names and kinds of tensors are those of llama.cpp's own converter: matrices in the kind asked for, the
patches' convolution in f16, all else in f32.
"""

import json
import sys
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter
from gguf.quants import quantize
from write_gguf import tensors

WHOLE = {
    "vision_model.embeddings.class_embedding": "v.class_embd",
    "vision_model.embeddings.patch_embedding.weight": "v.patch_embd.weight",
    "vision_model.embeddings.patch_embedding.bias": "v.patch_embd.bias",
    "vision_model.embeddings.position_embedding": "v.position_embd.weight",
}
LAYER = "vision_model.encoder.layers."
PARTS = {
    "norm1": "ln1",
    "norm2": "ln2",
    "attn.proj": "attn_out",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}
MATRICES = {"q8": Type.Q8_0, "f16": Type.F16}


def renamed(name, data):
    """(name, part) of each tensor that llama.cpp wants for this one."""
    if name in WHOLE:
        yield WHOLE[name], data
    elif name.startswith("mlp1."):
        yield name.replace("mlp1.", "mm.model.mlp."), data
    else:
        layer, rest = name.removeprefix(LAYER).split(".", 1)
        if rest in ("ls1", "ls2"):
            yield f"v.blk.{layer}.{rest}.weight", data
            return
        part, kind = rest.rsplit(".", 1)
        if part == "attn.qkv":
            for letter, third in zip("qkv", np.split(data, 3)):
                yield f"v.blk.{layer}.attn_{letter}.{kind}", third
        else:
            yield f"v.blk.{layer}.{PARTS[part]}.{kind}", data


def describe(writer, checkpoint, config):
    tower = config["vision_config"]
    pixels = json.loads((checkpoint / "preprocessor_config.json").read_text())
    writer.add_type("mmproj")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type("internvl")
    writer.add_vision_use_gelu(True)
    writer.add_vision_image_size(config["force_image_size"])
    writer.add_vision_patch_size(tower["patch_size"])
    writer.add_vision_embedding_length(tower["hidden_size"])
    writer.add_vision_feed_forward_length(tower["intermediate_size"])
    writer.add_vision_block_count(tower["num_hidden_layers"])
    writer.add_vision_head_count(tower["num_attention_heads"])
    writer.add_vision_attention_layernorm_eps(tower["layer_norm_eps"])
    writer.add_vision_projection_dim(config["llm_config"]["hidden_size"])
    writer.add_vision_projector_scale_factor(round(1 / config["downsample_ratio"]))
    writer.add_vision_image_mean(pixels["image_mean"])
    writer.add_vision_image_std(pixels["image_std"])


def main():
    checkpoint, out, matrices = Path(sys.argv[1]), sys.argv[2], MATRICES[sys.argv[3]]
    writer = GGUFWriter(out, "clip", use_temp_file=True)
    describe(writer, checkpoint, json.loads((checkpoint / "config.json").read_text()))
    for name, bits in tensors(checkpoint / "model.safetensors", ("vision_model.", "mlp1.")):
        wide = (bits.astype("<u4") << 16).view("<f4")
        for name, data in renamed(name, wide):
            kind = Type.F16 if data.ndim == 4 else matrices if data.ndim == 2 else Type.F32
            # One row each, as llama.cpp adds them.
            data = np.squeeze(data) if "_embd" in name and data.ndim == 3 else data
            writer.add_tensor(name, quantize(data, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main()
