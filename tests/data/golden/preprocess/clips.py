"""Makes the golden sizes of clips: what the video processors of Qwen-VL give all of their frames.

Run from anywhere: `python clips.py`; it rewrites `clips.json` beside itself, in a second.

Made with Python 3.11, torch 2.15.0, torchvision 0.29.2, transformers 5.23.0.  Sizes come from the
processors' own `resize` over empty frames.  A clip of one frame is left out: Qwen3-VL's refuses it.
"""

import json
from pathlib import Path
from unittest import mock

import torch
from transformers import Qwen2VLVideoProcessor, Qwen3VLVideoProcessor
from transformers.image_utils import SizeDict
from transformers.video_processing_utils import BaseVideoProcessor

HERE = Path(__file__).resolve().parent
SIZES = [(1080, 1920), (480, 640), (640, 480), (317, 211), (96, 96), (20, 300), (28, 28), (2160, 3840), (300, 20), (20, 4100)]
"""Height and width."""
FRAMES = [2, 3, 4, 5, 16, 61, 768]
LIMITS = [(4096, 25_165_824), (131_072, 786_432), (3136, 12_845_056), (200_000, 400_000)]
"""Fewest and most pixels: as Qwen3-VL is published, its class's own, Qwen2.5-VL's, and narrow ones."""
KINDS = [("frame", Qwen2VLVideoProcessor, 14), ("clip", Qwen3VLVideoProcessor, 16)]
"""What the limits are over, and pixels on a side of a patch."""


def target(processor, patch, frames, size, limits):
    """[height, width], or null where the processor refuses."""
    found = {}
    keep = lambda self, image, size, resample, **_: found.update(size=[size.height, size.width])
    with mock.patch.object(BaseVideoProcessor, "resize", keep):
        try:
            processor.resize(
                torch.empty((1, frames, 3, *size), device="meta"),
                size=SizeDict(shortest_edge=limits[0], longest_edge=limits[1]),
                resample=None, factor=2 * patch, temporal_factor=2, cap_pixels_per_frame=False,
            )
        except ValueError:
            return None
    return found["size"]


def main():
    rows = []
    for over, kind, patch in KINDS:
        processor = kind()
        for limits in LIMITS:
            for size in SIZES:
                for frames in FRAMES:
                    found = target(processor, patch, frames, size, limits)
                    rows.append([over, patch, *limits, frames, *size, found])
    print(len(rows), "clips,", sum(row[-1] is None for row in rows), "refused")
    lines = ",\n ".join(json.dumps(row) for row in rows)
    (HERE / "clips.json").write_text(f"[{lines}]\n")


if __name__ == "__main__":
    main()
