"""Says whether two results hold the same weights: every byte of every tensor that both name.

    same.py ONE OTHER     directories with model.safetensors, or model.onnx and its data
"""

import json
import os
import struct
import sys

import wire

BLOCK = 1 << 22


def places(folder):
    """Name -> (file, first byte, bytes, element type)."""
    if os.path.exists(f"{folder}/model.onnx"):
        return dict(weights(folder))
    path = f"{folder}/model.safetensors"
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        table = json.loads(file.read(length))
    table.pop("__metadata__", None)
    ranges = ((name, t["dtype"], t["data_offsets"]) for name, t in table.items())
    return {name: (path, 8 + length + a, b - a, dtype) for name, dtype, (a, b) in ranges}


def weights(folder):
    with open(f"{folder}/model.onnx", "rb") as file:
        graph = wire.decode(dict(wire.decode(file.read()))[7])
    for tensor in (wire.decode(value) for field, value in graph if field == 5):
        entries = (dict(wire.decode(value)) for field, value in tensor if field == 13)
        where = {entry[1].decode(): entry[2].decode() for entry in entries}
        if where:
            span = int(where["offset"]), int(where["length"])
            yield dict(tensor)[8].decode(), (f"{folder}/{where['location']}", *span, dict(tensor)[2])


def chunks(path, begin, length):
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), begin, length, os.POSIX_FADV_SEQUENTIAL)
        for at in range(begin, begin + length, BLOCK):
            yield os.pread(file.fileno(), min(BLOCK, begin + length - at), at)


def main(one, other):
    one, other = places(one), places(other)
    common = sorted(one.keys() & other.keys())
    # The parts of a head have names of each tool's own; their bytes are compared in order.
    pairs = [(name, one.pop(name), other.pop(name)) for name in common]
    rest = [sorted(left.values()) for left in (one, other)]
    if len(rest[0]) != len(rest[1]) or not pairs:
        sys.exit(f"the tensors differ: {sorted(one)[:3]} and {sorted(other)[:3]}")
    pairs += [(str(a), a, b) for a, b in zip(*rest)]
    for name, a, b in pairs:
        if a[2:] != b[2:] or any(x != y for x, y in zip(chunks(*a[:3]), chunks(*b[:3]))):
            sys.exit(f"tensor {name} differs")
    print(f"{len(pairs)} tensors are the same")


main(*sys.argv[1:])
