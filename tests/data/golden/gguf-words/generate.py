"""Makes tiny GGUF models with vocabularies of their own, and what llama.cpp makes of 400 lines.

    python3 -m venv venv
    venv/bin/pip install gguf==0.19.0 tokenizers==0.22.2 sentencepiece==0.2.1 numpy xllamacpp
    venv/bin/python generate.py

The vocabularies are trained on the lines without cutting these into words first, so that pieces reach over
every place where a text may be cut: a cut that is made elsewhere gives other tokens.  Each model has the
same vocabulary and another `tokenizer.ggml.pre`; `characters` is a SentencePiece vocabulary.
llama.cpp (`xllamacpp`, a build of it) tokenises the lines, special tokens in them parsed, none added.  Models
of `qwen2` compose letters and accents (NFC) before, as their tokenizer.json says; llama.cpp does not, so it
is given composed lines.
"""
import json
import random
import sys
import unicodedata
import urllib.request
from pathlib import Path

import gguf
import numpy as np
import sentencepiece
import xllamacpp
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

HERE = Path(__file__).parent
PRES = ["gpt-2", "smollm", "llama-bpe", "qwen2", "deepseek-r1-qwen", "deepseek-llm", "deepseek-coder"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
DEFINED = ["<tool_call>", "</tool_call>"]
WIDTH = 8

SENTENCES = [
    "The capital of France is Paris.", "It's what they've said; we'll see, I'd say he's RIGHT, aren't WE'RE?",
    "Ein großer Bär läuft über die Straße.", "Où est l'hôtel? À côté du café, s'il vous plaît!",
    "El niño comió una manzana.", "Быстрая лиса прыгает через ленивую собаку.", "Καλημέρα, κόσμε μου!",
    "今日は天気がいいですね。", "我喜欢吃苹果，不喜欢香蕉！", "안녕하세요, 세계!", "สวัสดีชาวโลก", "नमस्ते दुनिया",
    "مرحبا بالعالم", "שלום עולם", "Xin chào thế giới", "İstanbul'da yağmur yağıyor",
    "fn main() { println!(\"{}\", 1 + 2 * 3); }", "def f(x: int) -> str:\n    return str(x) * 2\n",
    "if (a != b && c <= d) { x->y[0] ^= ~z; } // done", "SELECT * FROM t WHERE id = 42 AND name LIKE '%a_b%';",
    "<html><body class=\"x\">&amp;</body></html>", "https://example.org/a?b=c&d=%20#e", "name@example.org",
    "3.14159 2,718,281 1e-9 0x1F 007 1234567890 ١٢٣ ५६ Ⅷ ½ ²", "$5.00 €7 £9 ¥11 100% #1 @2 ^3 &4 *5",
    "🙂🙃 👩‍👩‍👧‍👦 🇫🇷🇯🇵 ❤️ 👍🏽", "cafe\u0301 a\u0300\u0323 \u1e9b\u0323 \ufb01 Å Å", "\u00a0no\u2003break\u200bzero\ufeff",
    "ＦＵＬＬ　ｗｉｄｔｈ！", "“quotes” ‘single’ — dash – en … dots", "\\n is not \n and \\t is not \t",
    "a\r\nb\rc\n\nd\n\n\n", "   leading", "trailing   ", "tab\tand  two   three    four", " \t \n ",
]
NEAR = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_start|", "<|im_start |>", "<<|im_end|>>", "|im_end|>",
    "<tool_call>", "</tool_call>", "<tool_call", "<|im_start|>user\nHi<|im_end|>\n", "<s>", "</s>", "<unk>", "<0x0A>", "▁",
    "[PAD5]", "Ġ", "Ċ", " <|im_end|> ", "a<tool_call>b",
]


def lines() -> list[str]:
    """Sentences, look-alikes of special tokens, and what a seeded generator makes of their pieces."""
    rng = random.Random(19)
    pieces = [word for sentence in SENTENCES for word in sentence.split(" ")] + NEAR
    spaces = [" ", "  ", "   ", "     ", "\n", "\n\n", "\r\n", "\t", "\t\t", " \n", "\n ", "\u3000", "\u00a0", ""]
    letters = "abcXYZéñß日本語한글абв123٤ ½'’\".,!?_-+=<>|/\\()[]{}\n\t\r🙂\u0301"
    made = list(SENTENCES) + NEAR
    while len(made) < 400:
        kind = len(made) % 4
        if kind == 0:
            made.append("".join(rng.choice(pieces) + rng.choice(spaces) for _ in range(rng.randint(1, 8))))
        elif kind == 1:
            made.append("".join(rng.choice(letters) for _ in range(rng.randint(1, 24))))
        elif kind == 2:
            made.append(rng.choice([" ", "\n", "\t", "a", "é", "日", "'", "-", "1", "  \n"]) * rng.randint(1, 19))
        else:
            at = [rng.choice(SENTENCES) for _ in range(2)]
            made.append(rng.choice(spaces).join(at)[rng.randint(0, 9):])
    return [line for line in made if line]


def bytes_vocabulary(texts: list[str]):
    """Tokens and merges over letters that stand for bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return tokens, [" ".join(pair) for pair in model["merges"]]


def characters_vocabulary(texts: list[str]):
    """Tokens, scores and types of a SentencePiece vocabulary."""
    import io

    model = io.BytesIO()
    clean = [text.replace("\n", " ").replace("\r", " ").replace("\t", " ") for text in texts]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(clean), model_writer=model, model_type="bpe", vocab_size=900,
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        split_by_whitespace=False, allow_whitespace_only_pieces=True, hard_vocab_limit=False,
        minloglevel=2, character_coverage=0.98,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    tokens = [processor.id_to_piece(i) for i in range(processor.vocab_size())]
    scores = [processor.get_score(i) for i in range(processor.vocab_size())]
    kinds = [
        2 if processor.is_unknown(i) else 3 if processor.is_control(i) else 6 if processor.is_byte(i) else 1
        for i in range(processor.vocab_size())
    ]
    return tokens, scores, kinds


def write(path: Path, vocabulary: dict, tensors_max: int = 0) -> None:
    """A model of one layer that can be opened, all of its numbers small; in parts of so many tensors."""
    writer = gguf.GGUFWriter(str(path), "llama", split_max_tensors=tensors_max)
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH)
    writer.add_tokenizer_model(vocabulary["model"])
    writer.add_tokenizer_pre(vocabulary["pre"])
    writer.add_token_list(vocabulary["tokens"])
    writer.add_token_types(vocabulary["types"])
    if "merges" in vocabulary:
        writer.add_token_merges(vocabulary["merges"])
    else:
        writer.add_token_scores(vocabulary["scores"])
    writer.add_bos_token_id(vocabulary["bos"])
    writer.add_eos_token_id(vocabulary["eos"])
    writer.add_chat_template("{% for message in messages %}{{ message.content }}{% endfor %}")
    rng = np.random.default_rng(19)
    half = lambda *shape: (rng.standard_normal(shape) * 0.1).astype(np.float16)
    writer.add_tensor("token_embd.weight", half(len(vocabulary["tokens"]), WIDTH))
    for name in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]:
        writer.add_tensor(f"blk.0.{name}.weight", half(WIDTH, WIDTH))
    for name in ["blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"]:
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tokenised(path: Path, texts: list[str]) -> list[list[int]]:
    """What llama.cpp makes of the texts."""
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.warmup = 256, 1, False
    server = xllamacpp.Server(params)

    def ask(text: str) -> list[int]:
        body = json.dumps({"content": text, "add_special": False, "parse_special": True}).encode()
        request = urllib.request.Request(server.listening_address + "/tokenize", body)
        return json.load(urllib.request.urlopen(request))["tokens"]

    return [ask(text) for text in texts]


def main() -> None:
    texts = lines()
    (HERE / "lines.json").write_text(json.dumps(texts, ensure_ascii=True, indent=0) + "\n")
    tokens, merges = bytes_vocabulary([text for text in texts if text not in NEAR])
    special = len(tokens)
    common = {
        "model": "gpt2", "tokens": tokens + SPECIAL + DEFINED, "merges": merges,
        "types": [1] * special + [3] * len(SPECIAL) + [4] * len(DEFINED), "bos": special, "eos": special + 2,
    }
    expected = {}
    for pre in PRES:
        path = HERE / f"{pre}.gguf"
        write(path, {**common, "pre": pre})
        composed = [unicodedata.normalize("NFC", text) for text in texts]
        expected[pre] = tokenised(path, composed if pre == "qwen2" else texts)
    # The same model again, as llama.cpp's tools split it: `split-00001-of-00002.gguf` and its second part.
    write(HERE / "split.gguf", {**common, "pre": "smollm"}, tensors_max=6)
    tokens, scores, kinds = characters_vocabulary([text for text in texts if text not in NEAR])
    path = HERE / "characters.gguf"
    write(path, {
        "model": "llama", "pre": "default", "tokens": tokens, "scores": scores, "types": kinds, "bos": 1, "eos": 2,
    })
    expected["characters"] = tokenised(path, texts)
    rows = [f'"{name}": {json.dumps(ids, separators=(",", ":"))}' for name, ids in expected.items()]
    (HERE / "tokens.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")
    print({name: sum(map(len, ids)) for name, ids in expected.items()}, file=sys.stderr)


main()
