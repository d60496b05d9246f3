"""Gives the tiny CLIP a tokenizer, and says how near it finds squares of a picture to texts.

Run after `generate.py`: `python similarity.py` writes `checkpoint/tokenizer.json`,
`checkpoint/preprocessor_config.json` and `similarity.json`, byte for byte the same with these
versions.

Made with Python 3.11, torch 2.15.0, transformers 5.23.0, Pillow 12.3.0.

The tokenizer is transformers' own for CLIP over 26 letters and two merges.  The cosines are those of
`CLIPModel`, whose logits are divided by their scale; pictures go through the processor on Pillow.
"""

import json
from pathlib import Path

import torch
from PIL import Image
from transformers import CLIPModel, CLIPTokenizer
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

HERE = Path(__file__).resolve().parent
CHECKPOINT = HERE / "checkpoint"
PICTURE = HERE / "../../picture.png"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
TEXTS = ["What colour is the circle", "red", "the sea the sky the boat and all that is far away"]
"""The last is longer than the 16 places the model has."""
SQUARES = [(60, 50, 32), (100, 60, 32), (40, 20, 96), (200, 100, 120), (150, 110, 10)]
"""Left, top and side in pixels: the size the model sees, larger and smaller."""


def tokenizer():
    words = list(LETTERS) + [letter + "</w>" for letter in LETTERS]
    words += ["th", "the</w>", "re", "red</w>", "<|startoftext|>", "<|endoftext|>"]
    made = CLIPTokenizer(
        vocab={word: at for at, word in enumerate(words)},
        merges=[("t", "h"), ("th", "e</w>"), ("r", "e"), ("re", "d</w>")],
    )
    made._tokenizer.save(str(CHECKPOINT / "tokenizer.json"))
    return made


def main():
    torch.set_num_threads(1)
    words = tokenizer()
    processor = CLIPImageProcessorPil(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    )
    fields = {"image_mean": processor.image_mean, "image_std": processor.image_std}
    (CHECKPOINT / "preprocessor_config.json").write_text(json.dumps(fields, indent=1) + "\n")
    model = CLIPModel.from_pretrained(CHECKPOINT, attn_implementation="eager").eval()
    picture = Image.open(PICTURE).convert("RGB")
    squares = [picture.crop((x, y, x + side, y + side)) for x, y, side in SQUARES]
    pixels = processor(squares, return_tensors="pt")["pixel_values"]
    cases = []
    for text in TEXTS:
        tokens = words(text, truncation=True, max_length=16, return_tensors="pt")
        with torch.no_grad():
            out = model(pixel_values=pixels, **tokens)
        cosines = (out.logits_per_image / model.logit_scale.exp())[:, 0]
        assert len(set(cosines.tolist())) == len(squares), "squares are told apart"
        ids = tokens["input_ids"][0].tolist()
        cases.append({"text": text, "ids": ids, "cosines": [round(c, 6) for c in cosines.tolist()]})
        print(text, ids, cases[-1]["cosines"])
    told = {"squares": SQUARES, "cases": cases}
    (HERE / "similarity.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
