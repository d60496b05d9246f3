"""Runs every exported golden graph in onnxruntime and compares with what transformers computed.

    check.py SMELT GOLDEN WORK

SMELT is the built command, GOLDEN the folder of golden vectors, WORK a folder to export into.
Every folder of GOLDEN with a checkpoint and `cases.safetensors` is taken: tensors named
`CASE/in/INPUT` and `CASE/out/OUTPUT`, where a case's name begins with its part (`vision`,
`vision-HxW` for a grid, `llm`, `llm-step`, `encoder`).  Folders with `golden.safetensors` alone are
the InternVL ones, whose cases are made here.

Each part is exported in f32 and f16.  bf16 is not run: onnxruntime's CPU provider has no kernels for
it, so smelt's own evaluator checks those graphs, in `cargo test`.
"""

import json
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import onnxruntime

BOUNDS = {"f32": 5e-5, "f16": 5e-3}
"""Largest errors, as parts of the largest value of an output.  In f16 every weight is rounded to 11
bits; what the goldens compute in f32 moves by up to a few thousandths."""

NUMPY = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"),
}
INPUT_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
}
INTEGER_BOUND = 3e-2
"""Largest error of a graph that multiplies integers of 8 bits: the root of the mean square, as a part of the largest value."""
IMAGE_TOKEN = 383
"""`<IMG_CONTEXT>` of the tiny InternVL tokenizer."""


def read_safetensors(path):
    """Name -> array; bf16 is widened to f32."""
    blob = path.read_bytes()
    header_bytes = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8 : 8 + header_bytes])
    header.pop("__metadata__", None)
    tensors = {}
    for name, about in header.items():
        begin, end = (8 + header_bytes + offset for offset in about["data_offsets"])
        array = np.frombuffer(blob[begin:end], NUMPY[about["dtype"]])
        if about["dtype"] == "BF16":
            array = (array.astype("<u4") << 16).view("<f4")
        tensors[name] = array.reshape(about["shape"])
    return tensors


def cases_of(folder):
    """Case -> ({input: array}, {output: array})."""
    if not (folder / "cases.safetensors").exists():
        return internvl_cases(folder)
    cases = {}
    for name, array in read_safetensors(folder / "cases.safetensors").items():
        case, side, value = name.split("/", 2)
        given, expected = cases.setdefault(case, ({}, {}))
        (given if side == "in" else expected)[value] = array
    return cases


def internvl_cases(folder):
    """The tower, and the prompt with and without the image it saw."""
    golden = read_safetensors(folder / "golden.safetensors")
    weights = read_safetensors(folder / "checkpoint" / "model.safetensors")
    table = weights["language_model.model.embed_tokens.weight"]

    def prompt(kind):
        ids = golden[f"{kind}_ids"]
        embeds = table[ids].astype(np.float32)
        embeds[ids == IMAGE_TOKEN] = golden["image_embeds"].reshape(-1, table.shape[1])[
            : int((ids == IMAGE_TOKEN).sum())
        ]
        return {"inputs_embeds": embeds}, {"logits": golden[f"{kind}_logits"][None]}

    tower = {"pixel_values": golden["pixel_values"]}, {"image_embeds": golden["image_embeds"]}
    return {"vision": tower, "llm-text": prompt("text"), "llm-image": prompt("image")}


def export(smelt, folder, part, dtype, grids, out):
    out.parent.mkdir(parents=True, exist_ok=True)
    command = [smelt, "export", folder / "checkpoint", "--part", part, "--dtype", dtype]
    command += [word for grid in sorted(grids) for word in ("--grid", grid)]
    ran = subprocess.run([*command, "--out", out], capture_output=True, text=True)
    if ran.returncode != 0:
        last = ran.stderr.strip().splitlines()[-1:] or ["(said nothing)"]
        raise SystemExit(f"smelt export of {folder.name} {part} {dtype} failed: {last[0]}")


def completed(session, given):
    """What the graph takes: the case's arrays in the graph's types, and nothing cached where the
    case gives no cache.  None where the case's shapes are not the graph's."""
    batch, length = None, None
    for name in ("input_ids", "inputs_embeds"):
        if name in given:
            batch, length = given[name].shape[:2]
    inputs = {}
    for info in session.get_inputs():
        dtype = INPUT_TYPES[info.type]
        if info.name in given:
            array = given[info.name]
        elif info.name.startswith("past_key_values."):
            array = np.zeros([batch, info.shape[1], 0, info.shape[3]])
        elif info.name == "attention_mask":
            array = np.ones([batch, length])
        elif info.name == "position_ids":
            array = np.arange(length)[None].repeat(batch, 0)
        else:
            raise SystemExit(f"the case has no input {info.name}")
        fixed = zip(info.shape, array.shape)
        if len(info.shape) != array.ndim or any(isinstance(a, int) and a != b for a, b in fixed):
            return None
        inputs[info.name] = array.astype(dtype)
    return inputs


def run_case(sessions, case, given, expected):
    """The largest error of every expected output, as a part of its largest value."""
    for session in sessions:
        inputs = completed(session, given)
        if inputs is not None:
            break
    else:
        raise SystemExit(f"no graph takes the shapes of case {case}")
    names = [info.name for info in session.get_outputs()]
    lacking = sorted(set(expected) - set(names))
    if lacking or not expected:
        raise SystemExit(f"case {case} expects {lacking or 'nothing'}; the graph gives {names}")
    found = dict(zip(names, session.run(None, inputs)))
    errors = {}
    for name, want in expected.items():
        if found[name].size != want.size:
            raise SystemExit(f"{case}: {name} has shape {found[name].shape}, not {want.shape}")
        wide = found[name].astype(np.float64).reshape(want.shape)
        errors[name] = off(*(attended(name, array, given) for array in (wide, want)))
    return errors


def attended(name, array, given):
    """What a decoder gives for tokens.  Places of padding see nothing, so what they hold means
    nothing."""
    mask = given.get("attention_mask")
    if mask is None or not name.startswith(("logits", "present.")):
        return array
    rows = array if name == "logits" else array.transpose(0, 2, 1, 3)
    return rows[mask[:, -rows.shape[1] :].astype(bool)]


def off(found, want):
    error = np.abs(found - want).max() / np.abs(want).max()
    return np.inf if np.isnan(error) else error


def check_part(smelt, folder, part, dtype, cases, work):
    out = work / folder.name / f"{part}-{dtype}"
    grids = {m[1] for case in cases if (m := re.fullmatch(r"vision-(\d+x\d+)", case))}
    if grids and "vision" in cases:
        # The size the tower was trained on, besides the others.
        height, width = cases["vision"][0]["pixel_values"].shape[-2:]
        grids.add(f"{height}x{width}")
    export(smelt, folder, part, dtype, grids, out)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    provider = ["CPUExecutionProvider"]
    sessions = [
        onnxruntime.InferenceSession(str(path), options, providers=provider)
        for path in sorted(out.glob("*.onnx"))
    ]
    worst = 0.0
    for case, (given, expected) in sorted(cases.items()):
        for output, error in run_case(sessions, case, given, expected).items():
            worst = max(worst, error)
            if error > BOUNDS[dtype]:
                raise SystemExit(
                    f"{folder.name} {part} {dtype}: {output} of case {case} is off by {error:.1e}"
                    f" of its largest value; {BOUNDS[dtype]:.0e} is allowed"
                )
    print(f"{folder.name:20} {part:8} {dtype}  {len(cases)} cases, off by {worst:.1e}", flush=True)


def main(smelt, golden, work):
    count = 0
    for folder in sorted(Path(golden).iterdir()):
        files = ("cases.safetensors", "golden.safetensors")
        has_cases = any((folder / file).exists() for file in files)
        if not (has_cases and (folder / "checkpoint").is_dir()):
            continue
        cases = cases_of(folder)
        for part in sorted({case.split("-")[0] for case in cases}):
            own = {name: case for name, case in cases.items() if name.split("-")[0] == part}
            for dtype in BOUNDS:
                check_part(smelt, folder, part, dtype, own, Path(work))
                count += 1
    if count == 0:
        raise SystemExit(f"{golden} holds no golden vectors")
    print(f"{count} graphs give what transformers computed in onnxruntime {onnxruntime.__version__}")
    print("bf16 is not run here: onnxruntime's CPU provider has no kernels for it")
    # A processor that has AVX2 and no VNNI adds two products in 16 bits and cuts off what is more, but in a mode for that, which
    # aborts on a graph with convolutions.
    for name, graph, is_precise in [
        ("yolo-tiny", Path(golden) / "yolo-tiny" / "yolo.onnx", False),
        ("internvl3-tiny", Path(work) / "internvl3-tiny" / "vision-f32" / "model.onnx", False),
        ("qwen2_5_vl-tiny", one_grid(smelt, Path(golden) / "qwen2_5_vl-tiny", Path(work)), True),
        ("qwen3_vl-tiny", one_grid(smelt, Path(golden) / "qwen3_vl-tiny", Path(work)), True),
    ]:
        check_integers(smelt, name, graph, is_precise, Path(work) / "integers" / name)


def one_grid(smelt, folder, work):
    """The tower of a checkpoint, exported for the first of the sizes of its cases."""
    sizes = sorted(m[1] for case in cases_of(folder) if (m := re.fullmatch(r"vision-(\d+x\d+)", case)))
    out = work / "one-grid" / folder.name
    export(smelt, folder, "vision", "f32", sizes[:1], out)
    return out / "model.onnx"


def patches_of(pixels, cut):
    """Patches [patches, channels * frames * side * side] of an image of one frame, as transformers' Qwen2VLImageProcessor
    cuts them: image token by image token."""
    side, merge, frames = (cut[key] for key in ("patch_size", "merge_size", "temporal_patch_size"))
    height, width, channels = pixels.shape
    rows, columns = height // side // merge, width // side // merge
    planes = np.stack([pixels.transpose(2, 0, 1)] * frames)
    cuts = planes.reshape(frames, channels, rows, merge, side, columns, merge, side)
    return cuts.transpose(2, 5, 3, 6, 1, 0, 4, 7).reshape(rows * columns * merge * merge, -1)


def write_png(path, pixels):
    """RGB pixels [height, width, 3] as a PNG file (RFC 2083)."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    )


def pictures_of(height, width, count):
    """Pictures with soft shapes, as cameras see; the same each time."""
    rows, columns = np.mgrid[0:height, 0:width] / max(height, width)
    random = np.random.default_rng(7)
    for _ in range(count):
        waves = [
            np.sin(a * rows + b * columns + c) for a, b, c in random.uniform(1, 12, (3, 3))
        ]
        yield (127.5 + 127.4 * np.stack(waves, axis=-1)).astype(np.uint8)


def check_integers(smelt, name, graph, is_precise, work):
    """What smelt sees of a graph's values is what onnxruntime computes of them, and the graph that multiplies integers
    by it says nearly the same there."""
    work.mkdir(parents=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if is_precise:
        options.add_session_config_entry("session.x64quantprecision", "1")
    session = lambda path: onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def ran(*command):
        done = subprocess.run([smelt, "onnx", *map(str, command)], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"smelt onnx {command[0]} of {name} failed: {done.stderr.strip()[-300:]}")

    whole = session(graph)
    [given] = whole.get_inputs()
    if len(given.shape) == 4:
        height, width = given.shape[2:]
        cut = lambda pixels: pixels.transpose(2, 0, 1)[None]
    else:
        record = json.loads((graph.parent / "grids.json").read_text())
        [grid] = record["grids"]
        height, width = grid["height"], grid["width"]
        cut = lambda pixels: patches_of(pixels, record)
    seen = list(pictures_of(height, width, 6))
    (work / "seen").mkdir()
    for at, pixels in enumerate(seen):
        write_png(work / "seen" / f"{at}.png", pixels)
    ran("calibrate", graph, "--images", work / "seen", "--out", work / "max", "--method", "max")
    ranges = json.loads((work / "max" / "ranges.json").read_text())["values"]
    fed = lambda pixels: {given.name: cut(pixels).astype(np.float32) / 255}

    # Values from the first to the last, given by a graph that ends with them.
    values = sorted(set(ranges) - {given.name})[:: max(1, len(ranges) // 12)]
    outputs = [word for value in values for word in ("--output", value)]
    ran("extract", graph, *outputs, "--out", work / "inside")
    inside = session(work / "inside" / "model.onnx")
    found = [inside.run(values, fed(pixels)) for pixels in seen]
    for at, value in enumerate(values):
        least = min(float(run[at].min()) for run in found)
        most = max(float(run[at].max()) for run in found)
        room = 1e-4 * max(abs(least), abs(most), 1e-3)
        said = ranges[value]
        if abs(said["min"] - least) > room or abs(said["max"] - most) > room:
            raise SystemExit(f"{name}: {value} lies between {least} and {most}; smelt saw {said}")

    another = fed(list(pictures_of(height, width, 7))[6])
    before = whole.run(None, another)
    for method in ("max", "entropy"):
        folder = work / f"by-{method}"
        ran("calibrate", graph, "--images", work / "seen", "--out", folder, "--method", method)
        ran("insert-qdq", graph, "--calibration", folder, "--out", work / f"int8-{method}")
        after = session(work / f"int8-{method}" / "model.onnx").run(None, another)
        parts = [np.sqrt(((a - b) ** 2).mean()) / np.abs(a).max() for a, b in zip(before, after)]
        if max(parts) > INTEGER_BOUND or np.isnan(parts).any():
            raise SystemExit(f"{name} in integers by {method} is off by {max(parts):.1e}; {INTEGER_BOUND:.0e} is allowed")
        print(f"{name:20} in integers by {method:8} off by {max(parts):.1e}; {len(values)} values lie where smelt saw them")


if __name__ == "__main__":
    main(*sys.argv[1:])
