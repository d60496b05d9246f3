"""Opens with transformers what `smelt quantize --format …` writes of models that see.

Run as `check.py SMELT WORK`: the program, and a directory to make everything in.

Flow: transformers makes a tiny model of each family, with the processor that such models are published with -> smelt packs
its decoder -> every file beside the weights is the source's -> transformers reads configuration and processor, which cut a
picture and a clip as the source's do -> it finds the same modules packed -> the model, opened by it with each tool's own
package, answers as one of the weights that the packed ones stand for.  These come out of a transcription of each tool's own packing, so that nothing of smelt's says
what is right.  A model in InternVL's first layout needs code that is not here: its files, names and weights are looked at.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor
from transformers.quantizers.quantizers_utils import should_convert_module

SCHEMES = {
    # transformers reads no packed zeros of compressed-tensors.
    "compressed-tensors": ["int4-g32", "int8-g32"],
    "awq": ["int4-g32", "int4-g32-asym"],
    "gptq": ["int4-g32", "int8-g32", "int4-g32-asym"],
}
AWQ_LANES = [0, 2, 4, 6, 1, 3, 5, 7]
"""Which column of eight each half byte of a word of AutoAWQ's holds."""

TEXT = dict(
    hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96,
    max_position_embeddings=4096, rms_norm_eps=1e-6, tie_word_embeddings=False,
)
CLOSE = 1e-3
"""How far logits may be apart, as a part of the largest: GPTQModel multiplies in half floats."""


def tokenizer(words):
    """A byte-level tokenizer with these special words behind its bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(letters)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in words])
    return inner


def fast(words, **tokens):
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer(words), eos_token="<|im_end|>", pad_token="<|endoftext|>", **tokens,
    )
    return made


CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for p in m.content %}{% if p.type == 'image' %}IMAGE"
    "{% elif p.type == 'video' %}VIDEO{% else %}{{ p.text }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def template(image, video):
    return TEMPLATE.replace("IMAGE", image).replace("VIDEO", video)


def qwen(name, config, model, processor, video_class, vision, text, **patches):
    words = CHATML + ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    own = fast(words)
    ids = {word: own.convert_tokens_to_ids(word) for word in words}
    shown = [f"<|vision_start|><|{kind}_pad|><|vision_end|>" for kind in ("image", "video")]
    cut = dict(min_pixels=56 * 56, max_pixels=112 * 112, **patches)
    made = config(
        text_config=dict(TEXT, vocab_size=len(own), **text),
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False,
    )
    see = processor(
        image_processor=transformers.Qwen2VLImageProcessor(**cut), tokenizer=own, video_processor=video_class(**cut),
        chat_template=template(*shown),
    )
    return name, model(made), see


def rope(sections, **more):
    return dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=sections, **more))


def families():
    """Name, model and processor of each."""
    t = transformers
    yield qwen(
        "qwen2-vl", t.Qwen2VLConfig, t.Qwen2VLForConditionalGeneration, t.Qwen2VLProcessor, t.Qwen2VLVideoProcessor,
        dict(depth=1, embed_dim=32, hidden_size=64, num_heads=2, mlp_ratio=2, patch_size=14, spatial_merge_size=2),
        rope([2, 3, 3]),
    )
    yield qwen(
        "qwen2.5-vl", t.Qwen2_5_VLConfig, t.Qwen2_5_VLForConditionalGeneration, t.Qwen2_5_VLProcessor,
        t.Qwen2VLVideoProcessor,
        dict(depth=1, hidden_size=32, num_heads=2, intermediate_size=48, out_hidden_size=64, patch_size=14,
             spatial_merge_size=2, window_size=56, fullatt_block_indexes=[0]),
        rope([2, 3, 3]),
    )
    yield qwen(
        "qwen3-vl", t.Qwen3VLConfig, t.Qwen3VLForConditionalGeneration, t.Qwen3VLProcessor, t.Qwen3VLVideoProcessor,
        dict(depth=2, hidden_size=32, num_heads=2, intermediate_size=48, out_hidden_size=64, patch_size=16,
             spatial_merge_size=2, num_position_embeddings=64, deepstack_visual_indexes=[0]),
        dict(rope([2, 3, 3], mrope_interleaved=True), head_dim=16), patch_size=16,
    )
    yield internvl()
    yield smolvlm()


def internvl():
    t = transformers
    words = CHATML + ["<img>", "</img>", "<IMG_CONTEXT>", "<video>"]
    tokens = dict(start_image_token="<img>", end_image_token="</img>", context_image_token="<IMG_CONTEXT>")
    own = fast(words, extra_special_tokens=dict(tokens, video_token="<video>"))
    vision = dict(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48, image_size=[56, 56],
        patch_size=[14, 14],
    )
    text = dict(TEXT, model_type="qwen2", vocab_size=len(own), rope_theta=10000.0)
    config = t.InternVLConfig(
        vision_config=vision, text_config=text, image_token_id=own.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=4, tie_word_embeddings=False,
    )
    side = dict(height=56, width=56)
    see = t.InternVLProcessor(
        image_processor=t.GotOcr2ImageProcessor(size=side, max_patches=4), tokenizer=own,
        video_processor=t.InternVLVideoProcessor(size=side), image_seq_length=4,
        chat_template=template("<IMG_CONTEXT>\n", "<video>\n"),
    )
    return "internvl", t.InternVLForConditionalGeneration(config), see


def smolvlm():
    t = transformers
    words = CHATML + ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]
    words += [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    own = fast(words, extra_special_tokens=dict(
        image_token="<image>", fake_image_token="<fake_token_around_image>", global_image_token="<global-img>",
        end_of_utterance_token="<end_of_utterance>",
    ))
    vision = dict(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48, image_size=56, patch_size=14,
    )
    text = dict(TEXT, model_type="llama", vocab_size=len(own), pad_token_id=own.convert_tokens_to_ids("<|endoftext|>"))
    config = t.SmolVLMConfig(
        vision_config=vision, text_config=text, image_token_id=own.convert_tokens_to_ids("<image>"), scale_factor=2,
        tie_word_embeddings=False, pad_token_id=own.convert_tokens_to_ids("<|endoftext|>"),
    )
    cut = dict(size=dict(longest_edge=112), max_image_size=dict(longest_edge=56))
    see = t.SmolVLMProcessor(
        image_processor=t.SmolVLMImageProcessor(**cut), tokenizer=own, image_seq_len=4,
        video_processor=t.SmolVLMVideoProcessor(
            size=dict(longest_edge=56), max_image_size=dict(longest_edge=56),
            video_sampling=dict(fps=1, max_frames=4, video_size=dict(longest_edge=56)),
        ),
        chat_template=template("<image>", "<image>"),
    )
    return "smolvlm", t.SmolVLMForConditionalGeneration(config), see


def picture():
    rows, columns = np.mgrid[0:70, 0:90]
    return Image.fromarray(np.stack([rows * 3 % 256, columns * 2 % 256, (rows + columns) % 256], -1).astype(np.uint8))


def shown(processor):
    """What the processor makes of a question about a picture, and of a clip."""
    question = lambda kind: processor.apply_chat_template(
        [dict(role="user", content=[dict(type=kind), dict(type="text", text="What is there?")])],
        add_generation_prompt=True, tokenize=False,
    )
    yield "a picture", processor(text=[question("image")], images=[picture()], return_tensors="pt")
    frames = np.stack([np.roll(np.asarray(picture()), 5 * n, axis=1) for n in range(4)])
    about = dict(total_num_frames=4, fps=2.0, frames_indices=[0, 1, 2, 3], duration=2.0)
    # SmolVLM writes a clip's words itself, of what the template leaves.
    if not isinstance(processor, transformers.SmolVLMProcessor):
        yield "a clip", processor(
            text=[question("video")], videos=[frames], video_metadata=[about], do_sample_frames=False,
            return_tensors="pt",
        )


def equal(found, expected, what):
    assert found.keys() == expected.keys(), f"{what}: {found.keys()} and {expected.keys()}"
    for name, value in expected.items():
        same = torch.equal(found[name], value) if torch.is_tensor(value) else found[name] == value
        assert same, f"{what}: {name} differs"


def logits(model, inputs):
    with torch.no_grad():
        return model(**inputs).logits


def words_of(packed, bits):
    """The integers of 32-bit words, least bits first, along the last axis."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    words = packed.numpy().astype(np.int32).view(np.uint32)
    parts = (words[..., None] >> shifts) & np.uint32(2**bits - 1)
    return parts.reshape(*packed.shape[:-1], -1).astype(np.int64)


def of_compressed(tensors, module, bits):
    rows, columns = tensors[f"{module}.weight_shape"].tolist()
    quants = words_of(tensors[f"{module}.weight_packed"], bits)[:, :columns] - 2 ** (bits - 1)
    scales = tensors[f"{module}.weight_scale"].float().numpy()
    return quants * np.repeat(scales, columns // scales.shape[1], axis=1)


def of_gptq(tensors, module, bits, is_second):
    quants = words_of(tensors[f"{module}.qweight"].T.contiguous(), bits).T
    zeros = words_of(tensors[f"{module}.qzeros"], bits) + (0 if is_second else 1)
    group = tensors[f"{module}.g_idx"].long().numpy()
    scales = tensors[f"{module}.scales"].float().numpy()
    return ((quants - zeros[group]) * scales[group]).T


def of_awq(tensors, module, bits):
    assert bits == 4, "AutoAWQ packs four bits alone"
    place = np.argsort(AWQ_LANES)
    unpack = lambda packed: words_of(packed, 4).reshape(packed.shape[0], -1, 8)[..., place].reshape(packed.shape[0], -1)
    quants, zeros = unpack(tensors[f"{module}.qweight"]), unpack(tensors[f"{module}.qzeros"])
    scales = tensors[f"{module}.scales"].float().numpy()
    group = quants.shape[0] // scales.shape[0]
    return ((quants - np.repeat(zeros, group, axis=0)) * np.repeat(scales, group, axis=0)).T


def weights(folder):
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(file))
    return tensors


def floats(folder):
    """All weights of a packed checkpoint as floats under the source's names, and the modules that are packed."""
    tensors = weights(folder)
    section = json.loads((folder / "config.json").read_text())["quantization_config"]
    method = section["quant_method"]
    mark = ".weight_packed" if method == "compressed-tensors" else ".qweight"
    modules = sorted(name.removesuffix(mark) for name in tensors if name.endswith(mark))
    own = [".weight_packed", ".weight_scale", ".weight_shape", ".qweight", ".qzeros", ".scales", ".g_idx"]
    out = {name: value for name, value in tensors.items() if not any(name.endswith(end) for end in own)}
    for module in modules:
        if method == "compressed-tensors":
            groups = section["config_groups"].values()
            # Packed words say how many bits an integer has: as many columns as the shape says.
            columns, packed = tensors[f"{module}.weight_shape"][1].item(), tensors[f"{module}.weight_packed"].shape[1]
            bits = 32 * packed // columns
            assert bits in {group["weights"]["num_bits"] for group in groups}, f"{module}: {bits} bits"
            value = of_compressed(tensors, module, bits)
        elif method == "awq":
            value = of_awq(tensors, module, section["bits"])
        else:
            value = of_gptq(tensors, module, section["bits"], section["checkpoint_format"] == "gptq_v2")
        out[f"{module}.weight"] = torch.from_numpy(np.ascontiguousarray(value)).float()
    return out, modules


def files_beside(folder):
    return {path.name for path in folder.iterdir() if path.suffix != ".safetensors"} - {
        "config.json", "model.safetensors.index.json",
    }


def beside_is_whole(source, made, what):
    """Every file beside the weights went along, byte for byte."""
    missing = files_beside(source) - files_beside(made)
    assert not missing, f"{what}: {sorted(missing)} did not go along"
    for name in files_beside(source):
        assert (made / name).read_bytes() == (source / name).read_bytes(), f"{what}: {name} was changed"


def config_is_equal(source, made, what):
    """Only what is said of weights is added."""
    read = lambda folder: json.loads((folder / "config.json").read_text())
    before, after = read(source), read(made)
    after.pop("quantization_config")
    assert after == before, f"{what}: config.json differs in more than quantization_config"


def converted(model, section):
    """The modules of the model that transformers would put its own packed ones in the place of."""
    left_out = section.get("modules_to_not_convert") or []
    linear = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    head = {"lm_head"} if not section.get("lm_head") else set()
    return {name for name in linear if should_convert_module(name, left_out)} - head


def quantize(smelt, source, made, scheme, form):
    shutil.rmtree(made, ignore_errors=True)
    head = ["--head", scheme] if form == "compressed-tensors" else []
    command = [smelt, "quantize", source, "--scheme", scheme, "--format", form, "--out", made, *head]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def packed_modules(modules, model):
    """Names in the file as names in the model, of which one is the other's end."""
    ends = lambda name: name.split("layers.", 1)[-1] if "layers." in name else name.rsplit(".", 1)[-1]
    tower = [name for name, _ in model.named_modules() if "visual" not in name and "vision" not in name]
    by_end = {ends(name): name for name in tower if "layers." in name or name == "lm_head"}
    return {by_end[ends(module)] for module in modules}


def check(smelt, work, family):
    name, model, processor = family
    source = work / name
    model.to(torch.bfloat16).save_pretrained(source)
    processor.save_pretrained(source)
    source_floats = weights(source)
    expected = list(shown(AutoProcessor.from_pretrained(source)))
    for form, schemes in SCHEMES.items():
        for scheme in schemes:
            what = f"{name}, {form}, {scheme}"
            made = work / f"{name}-{form}-{scheme}"
            quantize(smelt, source, made, scheme, form)
            beside_is_whole(source, made, what)
            config_is_equal(source, made, what)
            assert isinstance(AutoConfig.from_pretrained(made), type(model.config)), what
            for (shows, one), (_, other) in zip(shown(AutoProcessor.from_pretrained(made)), expected):
                equal(one, other, f"{what}: {shows}")
            answers_as_floats_do(source, made, source_floats, expected, (form, what))
            print(f"{what}: files, processor and answers hold")


def answers_as_floats_do(source, made, source_floats, expected, about):
    form, what = about
    tensors, modules = floats(made)
    assert tensors.keys() == source_floats.keys(), f"{what}: {tensors.keys() ^ source_floats.keys()}"
    for name, value in tensors.items():
        assert value.shape == source_floats[name].shape, f"{what}: {name}"
    plain = made.with_name(made.name + "-floats")
    shutil.rmtree(plain, ignore_errors=True)
    shutil.copytree(source, plain, ignore=shutil.ignore_patterns("*.safetensors*"))
    save_file({name: value.contiguous() for name, value in tensors.items()}, plain / "model.safetensors", {"format": "pt"})
    floats_model = AutoModelForImageTextToText.from_pretrained(plain, dtype=torch.float32).eval()
    section = json.loads((made / "config.json").read_text())["quantization_config"]
    packed = packed_modules(modules, floats_model)
    if form != "compressed-tensors":
        assert converted(floats_model, section) == packed, f"{what}: {converted(floats_model, section) ^ packed}"
    model, told = AutoModelForImageTextToText.from_pretrained(
        made, dtype=torch.float32, output_loading_info=True, device_map="cpu",
    )
    wrong = {kind: names for kind, names in told.items() if names and kind != "error_msgs"}
    assert not wrong, f"{what}: {wrong}"
    for shows, inputs in expected:
        one, other = logits(model.eval(), inputs), logits(floats_model, inputs)
        apart = ((one - other).abs().max() / other.abs().max()).item()
        assert apart < CLOSE, f"{what}: logits of {shows} are {apart} apart"


def check_original(smelt, work, source):
    """InternVL as it was first published, whose model is code beside the weights."""
    for form, schemes in SCHEMES.items():
        what, made = f"internvl's first layout, {form}", work / f"internvl-original-{form}"
        quantize(smelt, source, made, schemes[0], form)
        beside_is_whole(source, made, what)
        config_is_equal(source, made, what)
        tensors, modules = floats(made)
        before = weights(source)
        assert tensors.keys() == before.keys(), f"{what}: {tensors.keys() ^ before.keys()}"
        towers = [name for name in tensors if not name.startswith("language_model.")]
        assert towers and all(torch.equal(tensors[name], before[name]) for name in towers), f"{what}: the tower changed"
        assert all(module.startswith("language_model.") for module in modules), what
        for module in modules:
            apart = (tensors[f"{module}.weight"] - before[f"{module}.weight"].float()).abs().max().item()
            largest = before[f"{module}.weight"].float().abs().max().item()
            assert apart <= largest / 7, f"{what}: {module} is {apart} apart"
        print(f"{what}: files, names and weights hold")


def with_code(source, made):
    """The checkpoint with code that its `auto_map` names, and what that imports, as it is published."""
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(source, made, ignore=shutil.ignore_patterns("*.md", "*.log", "*.jsonl", "scores.json"))
    config = json.loads((made / "config.json").read_text())
    config["auto_map"] = {
        "AutoConfig": "configuration_internvl_chat.InternVLChatConfig",
        "AutoModel": "modeling_internvl_chat.InternVLChatModel",
    }
    (made / "config.json").write_text(json.dumps(config, indent=2))
    (made / "preprocessor_config.json").write_text(json.dumps(dict(crop_size=96, do_normalize=True, size=96)))
    (made / "configuration_internvl_chat.py").write_text("from .configuration_intern_vit import InternVisionConfig\n")
    (made / "configuration_intern_vit.py").write_text("class InternVisionConfig: pass\n")
    (made / "modeling_internvl_chat.py").write_text(
        "from .configuration_internvl_chat import InternVLChatConfig\nfrom .conversation import get_conv_template\n",
    )
    (made / "conversation.py").write_text("def get_conv_template(name): pass\n")
    return made


def main():
    smelt, work = Path(sys.argv[1]), Path(sys.argv[2])
    shapes = Path(__file__).resolve().parents[2] / "tests/data/shapes-vl"
    work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(7)
    check_original(smelt, work, with_code(shapes, work / "internvl-original"))
    for family in families():
        check(smelt, work, family)


main()
