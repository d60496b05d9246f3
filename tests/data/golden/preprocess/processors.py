"""Makes the golden tensors of the image processors of Qwen-VL, InternVL and CLIP.

Run from anywhere: `python processors.py`; it rewrites `processors.safetensors` and
`processors.json` beside itself in some seconds, byte for byte the same with these versions.

Made with Python 3.11, transformers 5.23.0, pillow 12.3.0, numpy 2.4.6, safetensors 0.8.0, and torch
2.15.0 for the clips alone.

Flow: the pictures beside this file -> transformers' processors on Pillow (the `Pil` classes, which
are the slow processors the models were trained behind; those on torchvision round otherwise).
Sizes are far below real ones, so that tensors are small; the table of targets holds real ones.  A clip is
resized a frame at a time by Pillow and then goes through the video processor's own `patchify`,
since that processor has no Pillow backend.
"""

import json
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.numpy import save_file
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
    Qwen2VLImageProcessorPil,
    smart_resize,
)

HERE = Path(__file__).resolve().parent
PICTURES = ["shapes-100x60", "see-through-56x56", "grey-tower-37x150", "lettering-300x80"]
CLIP_MEAN = [0.48145466, 0.4578275, 0.40821073]
CLIP_STD = [0.26862954, 0.26130258, 0.27577711]
IMAGENET_MEAN, IMAGENET_STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]

SIZES = [
    (1, 1), (28, 28), (14, 42), (27, 29), (41, 29), (56, 56), (70, 42), (98, 30), (100, 60),
    (37, 150), (300, 80), (199, 1), (640, 480), (480, 640), (1080, 1920), (3024, 4032), (317, 211),
    (5000, 5000), (201, 1), (8000, 100), (99, 7001), (4000, 3000), (1000, 1000), (2500, 2500),
]
"""Height and width; (14, 42) and (70, 42) lie half-way between two multiples of 28."""

LIMITS = [
    (14, 2, 56 * 56, 28 * 28 * 1280), (14, 2, 3136, 12_845_056), (14, 2, 4 * 784, 64 * 784),
    (16, 2, 65_536, 16_777_216), (16, 2, 4 * 1024, 256 * 1024),
]
"""Patch, merge, fewest and most pixels."""


def opened(name: str) -> Image.Image:
    """As it is; the processors lay transparency on white."""
    return Image.open(HERE / f"{name}.png")


def qwen(patch: int, mean, std, pixels_min: int, pixels_max: int) -> Qwen2VLImageProcessorPil:
    return Qwen2VLImageProcessorPil(
        patch_size=patch, merge_size=2, temporal_patch_size=2, image_mean=mean, image_std=std,
        size={"shortest_edge": pixels_min, "longest_edge": pixels_max},
    )


def qwen_cases(tensors: dict) -> list[dict]:
    cases = []
    for patch, mean, std, low, high in [
        (4, CLIP_MEAN, CLIP_STD, 16 * 16, 40 * 40),
        (7, [0.5] * 3, [0.5] * 3, 42 * 42, 60 * 60),
    ]:
        for name in PICTURES:
            out = qwen(patch, mean, std, low, high)(opened(name), return_tensors="np")
            key = f"patches-{patch}/{name}"
            tensors[key] = out["pixel_values"].astype(np.float32)
            _, rows, columns = out["image_grid_thw"][0].tolist()
            cases.append({
                "tensor": key, "file": f"{name}.png", "patch": patch, "merge": 2, "frames": 2,
                "mean": mean, "std": std, "pixels_min": low, "pixels_max": high,
                "height": rows * patch, "width": columns * patch,
            })
    return cases


def clip_of(name: str, count: int) -> list[Image.Image]:
    """Frames of equal size: windows that move over a picture."""
    picture = opened(name).convert("RGB")
    width, height = picture.width * 2 // 3, picture.height
    step = (picture.width - width) // count
    return [picture.crop((step * k, 0, step * k + width, height)) for k in range(count)]


def clip_case(name: str, count: int, tensors: dict) -> dict:
    """The frames of a clip as [P, C*T*p*p], by transformers' `patchify` of videos."""
    import torch
    from transformers import Qwen2VLVideoProcessor

    patch, height, width = 4, 24, 40
    processor = qwen(patch, CLIP_MEAN, CLIP_STD, 1, 10**9)
    frames = []
    for frame in clip_of(name, count):
        pixels = np.asarray(frame.resize((width, height), Image.Resampling.BICUBIC))
        scaled = processor.rescale(pixels.transpose(2, 0, 1), 1 / 255)
        frames.append(processor.normalize(scaled, CLIP_MEAN, CLIP_STD))
    video = torch.from_numpy(np.stack(frames)[None])
    rows, grid_t, *_ = Qwen2VLVideoProcessor(patch_size=patch).patchify(video, patch, 2, 2)
    key = f"clip-{count}/{name}"
    tensors[key] = rows[0].numpy().astype(np.float32)
    return {
        "tensor": key, "file": f"{name}.png", "frames": count, "patch": patch, "merge": 2,
        "mean": CLIP_MEAN, "std": CLIP_STD, "height": height, "width": width, "pairs": int(grid_t),
    }


def crop_cases(tensors: dict) -> list[dict]:
    cases = []
    for side in [32, 45]:
        processor = CLIPImageProcessorPil(
            size={"shortest_edge": side}, crop_size={"height": side, "width": side}
        )
        for name in PICTURES:
            key = f"crop-{side}/{name}"
            tensors[key] = processor(opened(name), return_tensors="np")["pixel_values"][0]
            cases.append({"tensor": key, "file": f"{name}.png", "side": side})
    return cases


def tile_cases(tensors: dict) -> list[dict]:
    """InternVL's tiles as the `-hf` checkpoints' processor cuts them."""
    processor = GotOcr2ImageProcessorPil(
        size={"height": 32, "width": 32}, crop_to_patches=True, min_patches=1, max_patches=4,
        image_mean=IMAGENET_MEAN, image_std=IMAGENET_STD,
    )
    cases = []
    for name in PICTURES:
        key = f"tiles-32/{name}"
        tensors[key] = processor(opened(name), return_tensors="np")["pixel_values"]
        cases.append({"tensor": key, "file": f"{name}.png", "side": 32, "tiles_max": 4})
    return cases


def resized(function, **arguments):
    try:
        return list(function(**arguments))
    except ValueError:
        return None


def stills() -> list[list]:
    """Step, limits, size and what `smart_resize` makes of it."""
    table = []
    for patch, merge, low, high in LIMITS:
        for height, width in SIZES:
            found = resized(
                smart_resize, height=height, width=width, factor=patch * merge, min_pixels=low,
                max_pixels=high,
            )
            table.append([patch * merge, low, high, height, width, found])
    return table


def main():
    tensors = {}
    record = {
        "patches": qwen_cases(tensors),
        "clips": [clip_case("lettering-300x80", 4, tensors), clip_case("shapes-100x60", 3, tensors)],
        "crops": crop_cases(tensors),
        "tiles": tile_cases(tensors),
        "stills": stills(),
    }
    tensors = {name: np.ascontiguousarray(rows) for name, rows in tensors.items()}
    save_file(tensors, HERE / "processors.safetensors")
    lines = [
        f'  "{name}": [\n' + ",\n".join("    " + json.dumps(row) for row in rows) + "\n  ]"
        for name, rows in record.items()
    ]
    (HERE / "processors.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    for name, rows in tensors.items():
        print(name, list(rows.shape), rows.dtype)


if __name__ == "__main__":
    main()
