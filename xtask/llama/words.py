"""What llama.cpp makes of ten thousand lines, with vocabularies that people have.

    words.py SOURCES FOLDER

SOURCES is llama-cpp-python's archive, whose llama.cpp has vocabularies without models: each of VOCABULARIES
becomes `FOLDER/NAME.gguf`, a model of one small layer, since smelt opens models alone.  `lines.json` are the
lines, `tokens.json` what llama.cpp makes of them by each vocabulary: special tokens parsed, none added.
Models of `qwen2` compose letters and accents (NFC) before, as their tokenizer.json says; llama.cpp does
not, so it is given composed lines.

A line has `null` where llama.cpp takes a plain token for a special one because it looks like one ("</s>" in Qwen2's
vocabulary): tokenizer.json knows nothing of that, and what it says counts.
"""

import ctypes
import json
import random
import sys
import tarfile
import unicodedata
from pathlib import Path

import gguf
import llama_cpp as llama
import numpy as np

VOCABULARIES = ["gpt-2", "deepseek-llm", "deepseek-coder", "llama-spm", "llama-bpe", "qwen2"]
COUNT = 10_000
SEED = 19
WIDTH = 8
ROOT = Path(__file__).resolve().parents[2]

# Scripts whose letters vocabularies know, and marks, digits, spaces and pictures between them.
RANGES = [
    (0x20, 0x7E), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x5FF), (0x600, 0x6FF),
    (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x2000, 0x206F), (0x20A0, 0x20BF), (0x2150, 0x218F),
    (0x2190, 0x22FF), (0x3000, 0x30FF), (0x4E00, 0x4FFF), (0xAC00, 0xACFF), (0xFF00, 0xFF60), (0x1F300, 0x1F64F),
]
SPACES = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n", "\n ", "\u00a0", "\u3000", "\u2003", "\u0085", ""]
NEAR = [
    "<s>", "</s>", "<unk>", "<0x0A>", "▁", "Ġ", "Ċ", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_start|",
    "<|begin_of_text|>", "<|eot_id|>", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<|EOT|>", "<|User|>",
]


def lines():
    """Lines of this repository's own files and what a seeded generator makes of them and of the ranges."""
    paths = [*ROOT.glob("docs/*.md"), *ROOT.glob("crates/*/src/*.rs"), *ROOT.glob("tests/data/**/*.py")]
    own = [line for path in sorted(paths) for line in path.read_text("utf-8").splitlines() if line.strip()]
    golden = json.loads((ROOT / "tests/data/golden/gguf-words/lines.json").read_text("utf-8"))
    rng = random.Random(SEED)
    letter = lambda: chr(rng.randint(*rng.choice(RANGES)))
    words = [word for line in own for word in line.split()]
    made = golden + rng.sample(own, min(len(own), 3000))
    while len(made) < COUNT:
        kind = len(made) % 5
        if kind == 0:
            made.append("".join(rng.choice(words) + rng.choice(SPACES) for _ in range(rng.randint(1, 30))))
        elif kind == 1:
            made.append("".join(letter() for _ in range(rng.randint(1, 40))))
        elif kind == 2:
            script = rng.choice(RANGES)
            made.append("".join(rng.choice([chr(rng.randint(*script)), " "]) for _ in range(rng.randint(1, 40))))
        elif kind == 3:
            made.append(rng.choice(SPACES + [letter(), str(rng.randint(0, 9))]) * rng.randint(1, 40) or " ")
        else:
            pieces = [rng.choice(golden), rng.choice(NEAR), rng.choice(words)]
            rng.shuffle(pieces)
            made.append(rng.choice(SPACES).join(pieces))
    return made[:COUNT]


def rewritten(source, path):
    """A model of one small layer with the vocabulary of `source`."""
    fields = gguf.GGUFReader(source).fields
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH)
    for name, field in fields.items():
        if name.startswith("tokenizer.ggml."):
            kind = field.types[0]
            writer.add_key_value(name, field.contents(), kind, field.types[-1] if len(field.types) > 1 else None)
    writer.add_chat_template("{% for message in messages %}{{ message.content }}{% endfor %}")
    small = lambda *shape: np.zeros(shape, np.float16)
    writer.add_tensor("token_embd.weight", small(len(fields["tokenizer.ggml.tokens"].data), WIDTH))
    for name in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]:
        writer.add_tensor(f"blk.0.{name}.weight", small(WIDTH, WIDTH))
    for name in ["blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"]:
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def promoted(vocab, path):
    """Texts of the tokens that are plain in the file and special to llama.cpp."""
    fields = gguf.GGUFReader(str(path)).fields
    texts, types = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type"))
    special = llama.LLAMA_TOKEN_ATTR_CONTROL
    return [
        text
        for token, (text, kind) in enumerate(zip(texts, types))
        if kind == gguf.TokenType.NORMAL and llama.llama_vocab_get_attr(vocab, token) & special
    ]


def tokenised(path, texts):
    """What llama.cpp makes of the texts."""
    params = llama.llama_model_default_params()
    params.vocab_only = True
    model = llama.llama_model_load_from_file(str(path).encode(), params)
    vocab = llama.llama_model_get_vocab(model)

    def tokens(text):
        data = text.encode()
        room = (llama.llama_token * (len(data) + 16))()
        count = llama.llama_tokenize(vocab, data, len(data), room, len(room), False, True)
        return list(room[:count])

    others = promoted(vocab, path)
    made = [None if any(other in text for other in others) else tokens(text) for text in texts]
    llama.llama_model_free(model)
    return made


def main():
    archive, folder = Path(sys.argv[1]), Path(sys.argv[2])
    silent = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(silent, ctypes.c_void_p(0))
    texts = lines()
    (folder / "lines.json").write_text(json.dumps(texts))
    composed = [unicodedata.normalize("NFC", text) for text in texts]
    expected = {}
    with tarfile.open(archive) as sources:
        for member in sources:
            name = Path(member.name).name.removeprefix("ggml-vocab-").removesuffix(".gguf")
            if "/models/ggml-vocab-" not in member.name or name not in VOCABULARIES:
                continue
            source, path = folder / "vocabulary", folder / f"{name}.gguf"
            source.write_bytes(sources.extractfile(member).read())
            rewritten(source, path)
            source.unlink()
            expected[name] = tokenised(path, composed if name == "qwen2" else texts)
    missing = sorted(set(VOCABULARIES) - set(expected))
    if missing:
        sys.exit(f"{archive} has no vocabulary of {', '.join(missing)}")
    (folder / "tokens.json").write_text(json.dumps(expected))


main()
