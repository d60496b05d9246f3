"""Writes which frames of films the families' own processors look at, as chosen.json.

Needs qwen-vl-utils, torchvision and transformers.
"""

import json
from pathlib import Path
from types import SimpleNamespace

from qwen_vl_utils.vision_process import smart_nframes
from transformers.models.internvl.video_processing_internvl import InternVLVideoProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.models.smolvlm.video_processing_smolvlm import SmolVLMVideoProcessor
from transformers.video_utils import VideoMetadata
import torch

FILMS = [(1, 30.0), (2, 1.0), (5, 25.0), (30, 29.97), (75, 25.0), (299, 30.0), (300, 30.0), (1437, 23.976), (1800, 30.0), (1801, 59.94), (108000, 30.0)]
WANTED = [(None, None), (1.0, None), (0.25, None), (12.5, None), (None, 2), (None, 6), (None, 8), (None, 27)]


def metadata(frames, fps):
    return VideoMetadata(total_num_frames=frames, fps=fps)


def qwen2_5_vl(frames, fps, wanted_fps, wanted_frames, frames_max):
    wanted = {"nframes": wanted_frames} if wanted_frames else {"fps": wanted_fps or 2.0, "max_frames": min(frames_max, frames)}
    return torch.linspace(0, frames - 1, smart_nframes(wanted, frames, fps)).round().long()


def qwen3_vl(frames, fps, wanted_fps, wanted_frames, frames_max):
    of = SimpleNamespace(fps=2, min_frames=4, max_frames=frames_max)
    return Qwen3VLVideoProcessor.sample_frames(of, metadata(frames, fps), num_frames=wanted_frames, fps=None if wanted_frames else wanted_fps)


def internvl3(frames, fps, wanted_fps, wanted_frames, frames_max):
    of = SimpleNamespace(num_frames=None if wanted_fps else frames_max, initial_shift=True)
    return InternVLVideoProcessor.sample_frames(of, metadata(frames, fps), num_frames=wanted_frames, fps=wanted_fps)


def smolvlm(frames, fps, wanted_fps, wanted_frames, frames_max):
    of = SimpleNamespace(num_frames=min(64, frames_max), fps=1)
    seen = VideoMetadata(total_num_frames=frames, fps=fps, duration=frames / fps)
    wanted = min(wanted_frames, frames_max) if wanted_frames else None
    return SmolVLMVideoProcessor.sample_frames(of, seen, num_frames=wanted, fps=wanted_fps)


cases = []
for family in [qwen2_5_vl, qwen3_vl, internvl3, smolvlm]:
    for frames, fps in FILMS:
        for wanted_fps, wanted_frames in WANTED:
            for frames_max in [32, 768]:
                try:
                    chosen = family(frames, fps, wanted_fps, wanted_frames, frames_max).tolist()
                except (ValueError, ZeroDivisionError, RuntimeError):
                    continue  # The reference takes none of so few.
                if not 0 < len(chosen) <= min(frames, frames_max):
                    continue  # What limits it there is the caller; no frame is shown twice.
                if len(chosen) > 64 and frames != 1800:
                    continue  # A few long ones will do.
                cases.append({"family": family.__name__, "frames": frames, "fps": fps, "wanted_fps": wanted_fps, "wanted_frames": wanted_frames, "frames_max": frames_max, "chosen": chosen})
lines = ",\n".join(json.dumps(case) for case in cases)
Path(__file__).with_name("chosen.json").write_text(f"[\n{lines}\n]\n")
