"""Makes the golden positions of prompts with a clip, `clips.json`.

Run from anywhere: `python clips.py`; it rewrites the file beside itself, the same with these versions.

Made with Python 3.11, torch 2.15.0, transformers 5.23.0.  The model is the one of `generate.py`
without its weights: positions follow from the configuration alone.
"""

import json
from pathlib import Path

import torch
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

HERE = Path(__file__).resolve().parent
VIDEO_TOKEN, VISION_START, VISION_END = 253, 250, 251

CLIPS = [
    ((1, 4, 6), 1.0), ((3, 4, 6), 1.0), ((4, 2, 8), 0.5), ((5, 4, 4), 1.0 / 3.0), ((6, 2, 2), 2.5),
    ((7, 6, 4), 0.4),
]
"""Steps, rows and columns of patches; seconds from one step to the next."""


def main():
    config = Qwen2_5_VLConfig.from_pretrained(HERE / "checkpoint")
    with torch.device("meta"):
        model = Qwen2_5_VLForConditionalGeneration(config)
    per_second = config.vision_config.tokens_per_second
    out = []
    for (steps, rows, columns), seconds in CLIPS:
        count = steps * rows * columns // 4
        ids = [7, 8, 9, VISION_START] + [VIDEO_TOKEN] * count + [VISION_END, 5, 6]
        row = torch.tensor([ids])
        places, delta = model.model.get_rope_index(
            row,
            (row == VIDEO_TOKEN).int() * 2,
            video_grid_thw=torch.tensor([[steps, rows, columns]]),
            second_per_grid_ts=torch.tensor([seconds]),
        )
        out.append({
            "grid": [steps, rows, columns],
            "interval": (per_second * torch.tensor(seconds)).item(),
            "ids": ids,
            "position_ids": places[:, 0].tolist(),
            "delta": delta.item(),
        })
    lines = ",\n".join(json.dumps(entry) for entry in out)
    (HERE / "clips.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
