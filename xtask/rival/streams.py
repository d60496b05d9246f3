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


def quantize(folder, out):
    """The decoder's products as int8 with an f32 scale per row; the rest as it is."""
    checkpoint = Checkpoint(folder)
    kept = {n: t for n, t in checkpoint.tensors.items() if n.startswith("language_model.")}
    linear = [n for n in kept if n.endswith("_proj.weight") or n.endswith("lm_head.weight")]
    table, at = {}, 0
    for name, tensor in kept.items():
        rows = tensor["shape"][0]
        size = int(np.prod(tensor["shape"]))
        parts = [(name, "BF16", tensor["shape"], 2 * size)]
        if name in linear:
            parts = [(name, "I8", tensor["shape"], size), (f"{name}_scale", "F32", [rows], 4 * rows)]
        for part, dtype, shape, length in parts:
            table[part] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + length]}
            at += length
    header = json.dumps(table).encode()
    header += b" " * (-len(header) % 8)
    data = open(f"{out}/model.safetensors", "wb", buffering=0)
    data.write(struct.pack("<Q", len(header)) + header)
    for name, tensor in kept.items():
        if name in linear:
            data.write(np.concatenate(list(round_rows(checkpoint, name, tensor["shape"][1], data))))
            continue
        for bits in checkpoint.blocks(name):
            data.write(bits)
    finish(data)


def round_rows(checkpoint, name, width, data):
    """Writes the integers of a matrix; gives the scales of each block."""
    wide = levels = scratch = None
    for bits in checkpoint.blocks(name, width):
        if wide is None:
            wide, scratch = np.empty(bits.size, np.float32), np.empty(bits.size, np.uint16)
            levels = np.empty(bits.size, np.int8)
        bits = bits.reshape(-1, width)
        top = largest(bits, scratch, name, axis=1)
        scale = widen(top, np.empty(top.size, np.float32)) / np.float32(127)
        values = widen(bits, wide)
        np.divide(values, np.where(scale > 0, scale, 1)[:, None], out=values)
        np.rint(values, out=values)
        level = levels[: bits.size].reshape(bits.shape)
        np.copyto(level, values, casting="unsafe")
        data.write(level)
        yield scale


def finish(data):
    os.fsync(data.fileno())
    os.posix_fadvise(data.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    data.close()
