"""Reads a checkpoint block by block with pread and numpy, and writes what becomes of it.

Buffers are made once and used again, results go into them in place, and pages are dropped from the
cache as they are done with, so memory stays small.
"""

import json
import os
import struct
import sys

import numpy as np

import vision
import wire

BLOCK = 1 << 20  # bytes of a block of bf16 weights
PAGE = 4096


class Checkpoint:
    """The tensors of one safetensors file."""

    def __init__(self, folder):
        self.folder = folder
        self.fd = os.open(f"{folder}/model.safetensors", os.O_RDONLY)
        (length,) = struct.unpack("<Q", os.pread(self.fd, 8, 0))
        self.start = 8 + length
        table = json.loads(os.pread(self.fd, length, 8))
        table.pop("__metadata__", None)
        self.tensors = dict(sorted(table.items(), key=lambda item: item[1]["data_offsets"][0]))
        self.buffer = np.empty(BLOCK // 2, np.uint16)

    def blocks(self, name, row=1):
        """The bf16 bits of a tensor, whole rows of `row` elements at a time, in one buffer."""
        begin, end = (self.start + at for at in self.tensors[name]["data_offsets"])
        step = max(len(self.buffer) // row, 1) * row * 2
        if step > self.buffer.nbytes:
            self.buffer = np.empty(step // 2, np.uint16)
        for at in range(begin, end, step):
            bits = self.buffer[: min(step, end - at) // 2]
            assert os.preadv(self.fd, [bits], at) == bits.nbytes
            yield bits
        os.posix_fadvise(self.fd, begin, end - begin, os.POSIX_FADV_DONTNEED)


def widen(bits, out):
    """bf16 bits as f32, into `out`."""
    wide = out.view(np.uint32)[: bits.size].reshape(bits.shape)
    np.left_shift(bits, 16, out=wide, dtype=np.uint32)
    return wide.view(np.float32)


def largest(bits, scratch, name, limit=0x7F7F, axis=None):
    """The largest magnitude, compared as integers; more than `limit` is refused."""
    found = np.bitwise_and(bits, 0x7FFF, out=scratch[: bits.size].reshape(bits.shape)).max(axis)
    if np.any(found > limit):
        sys.exit(f"tensor {name} holds a value beyond its type")
    return found


def export_vision(folder, out):
    """Weights in file order, each on a page of its own, then the graph over them."""
    checkpoint = Checkpoint(folder)
    with open(f"{folder}/config.json") as file:
        config = json.load(file)
    wide, scratch = np.empty(BLOCK // 2, np.float32), np.empty(BLOCK // 2, np.uint16)
    halves, initializers, at = np.empty(BLOCK // 2, np.float16), [], 0
    data = open(f"{out}/model.onnx.data", "wb", buffering=0)
    for name, tensor in checkpoint.tensors.items():
        if name.startswith("language_model."):
            continue
        data.write(bytes(-at % PAGE))
        at += -at % PAGE
        begin = at
        for bits in checkpoint.blocks(name):
            largest(bits, scratch, name, limit=0x477F)  # 65280, the last bf16 below f16's 65504
            half = halves[: bits.size]
            np.copyto(half, widen(bits, wide), casting="same_kind")
            at += data.write(half)
        dims = vision.dims(name, tensor["shape"])
        initializers.append(
            wire.external(name, vision.F16, dims, "model.onnx.data", begin, at - begin)
        )
    finish(data)
    with open(f"{out}/model.onnx", "wb") as file:
        file.write(vision.model(config, initializers))


def quantize(folder, out, scheme):
    """The decoder's products as integers with their scales; the rest as it is."""
    checkpoint = Checkpoint(folder)
    kept = {n: t for n, t in checkpoint.tensors.items() if n.startswith("language_model.")}
    rounders = {name: rounder(name, scheme) for name in kept}
    table, at = {}, 0
    for name, tensor in kept.items():
        rows, width = tensor["shape"][0], tensor["shape"][-1]
        parts = [(name, "BF16", tensor["shape"])]
        if rounders[name] is round_int8:
            parts = [(name, "I8", [rows, width]), (f"{name}_scale", "F32", [rows])]
        elif rounders[name] is round_int4:
            assert width % GROUP == 0, "groups that end short are beyond this script"
            parts = [(name, "U8", [rows, width // 2]), (f"{name}_scale", "F16", [rows, width // GROUP])]
        for part, dtype, shape in parts:
            length = int(np.prod(shape)) * SIZES[dtype]
            table[part] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + length]}
            at += length
    header = json.dumps(table).encode()
    header += b" " * (-len(header) % 8)
    data = open(f"{out}/model.safetensors", "wb", buffering=0)
    data.write(struct.pack("<Q", len(header)) + header)
    for name, tensor in kept.items():
        if rounders[name]:
            buffers = Buffers(checkpoint, tensor["shape"][1])
            blocks = checkpoint.blocks(name, tensor["shape"][1])
            scales = [rounders[name](name, bits, tensor["shape"][1], buffers, data) for bits in blocks]
            data.write(np.concatenate(scales))
            continue
        for bits in checkpoint.blocks(name):
            data.write(bits)
    finish(data)


GROUP = 128
SIZES = {"BF16": 2, "F16": 2, "F32": 4, "I8": 1, "U8": 1}


def rounder(name, scheme):
    if name.endswith("lm_head.weight"):
        return round_int8
    if name.endswith("_proj.weight"):
        return round_int8 if scheme == "int8" else round_int4
    return None


class Buffers:
    """What rounding a block needs, once for all blocks of a matrix."""

    def __init__(self, checkpoint, width):
        size = max(len(checkpoint.buffer) // width, 1) * width
        self.wide, self.scratch = np.empty(size, np.float32), np.empty(size, np.uint16)
        self.levels = np.empty(size, np.int8)


def place(name, bits, buffers, steps, to_scale):
    """The values of rows of `bits` in units of their row's scale, and the scales."""
    top = largest(bits, buffers.scratch, name, axis=1)
    scale = to_scale(widen(top, np.empty(top.size, np.float32)) / np.float32(steps))
    values = widen(bits, buffers.wide)
    np.divide(values, np.where(scale > 0, scale, 1).astype(np.float32)[:, None], out=values)
    return values, scale


def round_int8(name, bits, width, buffers, data):
    values, scale = place(name, bits.reshape(-1, width), buffers, 127, lambda scale: scale)
    np.rint(values, out=values)
    level = buffers.levels[: bits.size].reshape(values.shape)
    np.copyto(level, values, casting="unsafe")
    data.write(level)
    return scale


def round_int4(name, bits, width, buffers, data):
    """Half a step beyond the largest integer rounds to it, so a group reaches 7.5 steps."""
    rows = bits.reshape(-1, GROUP)
    values, scale = place(name, rows, buffers, 7.5, lambda scale: scale.astype(np.float16))
    np.rint(values, out=values)
    np.clip(values, -8, 7, out=values)
    np.add(values, 8, out=values)
    level = buffers.levels[: bits.size].reshape(values.shape)
    np.copyto(level, values, casting="unsafe")
    pairs = level.reshape(-1).view(np.uint16)
    packed = buffers.scratch[: pairs.size]
    np.bitwise_or(pairs, np.right_shift(pairs, 4, out=packed), out=packed)
    data.write(packed.astype(np.uint8))
    return scale


def finish(data):
    os.fsync(data.fileno())
    os.posix_fadvise(data.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    data.close()
