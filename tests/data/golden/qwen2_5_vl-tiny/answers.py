"""Makes the golden answers of the tiny Qwen-VL models about real pictures and a clip.

Run from anywhere: `python answers.py`; it rewrites `answers.json` here and in `../qwen3_vl-tiny`.

Made with Python 3.11, torch 2.15.0, transformers 5.23.0, pillow 12.3.0.

Flow: the pictures of `../preprocess` -> transformers' processor on Pillow -> greedy tokens of the
models in float32, eager attention, each with the likeliest five and their logarithms.  Words are `w0` to `w247`, each one token, as no tokenizer
belongs to these checkpoints.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path += [str(ROOT / "preprocess"), str(HERE)]

import generate as qwen2_5  # noqa: E402
import processors  # noqa: E402
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize  # noqa: E402

IMAGE, VIDEO, START, END = 252, 253, 250, 251
LOW, HIGH, TOKENS = 256, 1600, 12
FPS = 2.0


def family_of_qwen3():
    import importlib.util

    spec = importlib.util.spec_from_file_location("qwen3", ROOT / "qwen3_vl-tiny/generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FAMILY


def still(name: str, mean, std):
    out = processors.qwen(4, mean, std, LOW, HIGH)(processors.opened(name), return_tensors="np")
    return torch.tensor(out["pixel_values"]).float(), out["image_grid_thw"][0].tolist()


def clip(name: str, count: int, mean, std):
    """Patches of a clip whose frames have the size that `smart_resize` gives the first."""
    import numpy as np
    from PIL import Image
    from transformers import Qwen2VLVideoProcessor

    frames = processors.clip_of(name, count)
    height, width = smart_resize(frames[0].height, frames[0].width, 8, LOW, HIGH)
    processor = processors.qwen(4, mean, std, LOW, HIGH)
    rows = []
    for frame in frames:
        pixels = np.asarray(frame.resize((width, height), Image.Resampling.BICUBIC))
        scaled = processor.rescale(pixels.transpose(2, 0, 1), 1 / 255)
        rows.append(processor.normalize(scaled, mean, std))
    video = torch.from_numpy(np.stack(rows)[None]).float()
    patches, steps, grid_h, grid_w = Qwen2VLVideoProcessor(patch_size=4).patchify(video, 4, 2, 2)
    return patches[0], [steps, grid_h, grid_w]


def tokens_of(grid) -> int:
    return grid[0] * grid[1] * grid[2] // 4


def greedy(model, ids, kinds, **pixels):
    row = torch.tensor([ids])
    with torch.no_grad():
        out = model.generate(
            input_ids=row, attention_mask=torch.ones_like(row), do_sample=False,
            mm_token_type_ids=torch.tensor([kinds]), max_new_tokens=TOKENS, eos_token_id=None,
            pad_token_id=0, return_dict_in_generate=True, output_logits=True, **pixels,
        )
    likely = [torch.log_softmax(row[0].float(), -1).topk(5) for row in out.logits]
    return {
        "said": out.sequences[0, len(ids):].tolist(),
        "top": [list(zip(row.indices.tolist(), row.values.tolist())) for row in likely],
    }


def pictures(model, mean, std, names) -> dict:
    seen = [still(name, mean, std) for name in names]
    ids = [7, 9]
    for _, grid in seen:
        ids += [START] + [IMAGE] * tokens_of(grid) + [END, 30]
    ids += [100, 101]
    said = greedy(
        model, ids, [int(token == IMAGE) for token in ids],
        pixel_values=torch.cat([rows for rows, _ in seen]),
        image_grid_thw=torch.tensor([grid for _, grid in seen]),
    )
    sizes = [[grid[1] * 4, grid[2] * 4] for _, grid in seen]
    return {"pictures": [f"{name}.png" for name in names], "sizes": sizes, "ids": ids} | said


def moving(model, mean, std, name: str, count: int) -> dict:
    """A clip as Qwen2.5-VL sees it, with its seconds a step.  The image token stands for the clip's in
    what is recorded: embeddings replace both."""
    rows, grid = clip(name, count, mean, std)
    ids = [7, START] + [VIDEO] * tokens_of(grid) + [END, 100]
    said = greedy(
        model, ids, [2 * int(token == VIDEO) for token in ids], pixel_values_videos=rows,
        video_grid_thw=torch.tensor([grid]), second_per_grid_ts=torch.tensor([2 / FPS]),
    )
    ids = [IMAGE if token == VIDEO else token for token in ids]
    size = [grid[1] * 4, grid[2] * 4]
    return {
        "clip": f"{name}.png", "frames": count, "fps": FPS, "sizes": [size], "ids": ids,
    } | said


def answers(family, folder: str, mean, std):
    torch.set_num_threads(1)
    model = qwen2_5.load(family, load_file(ROOT / folder / "checkpoint/model.safetensors"))
    out = [
        pictures(model, mean, std, ["shapes-100x60"]),
        pictures(model, mean, std, ["grey-tower-37x150", "lettering-300x80"]),
    ]
    if "qwen2" in folder:
        out.append(moving(model, mean, std, "lettering-300x80", 5))
    lines = ",\n".join(json.dumps(entry) for entry in out)
    (ROOT / folder / "answers.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    answers(qwen2_5.FAMILY, "qwen2_5_vl-tiny", processors.CLIP_MEAN, processors.CLIP_STD)
    answers(family_of_qwen3(), "qwen3_vl-tiny", [0.5] * 3, [0.5] * 3)
