"""Cuts the vocabulary product of an ONNX model whose weights lie beside it."""

import os

import wire


def split_head(folder, out, parts, consume):
    """The last Gemm, which gives the logits, as several over row ranges of its one weight, joined again."""
    with open(f"{folder}/model.onnx", "rb") as file:
        model = wire.decode(file.read())
    graph = wire.decode(dict(model)[7])
    at, head = [(i, n) for i, (field, n) in enumerate(graph) if field == 1 and is_gemm(n)][-1]
    head = wire.decode(head)
    inputs = [value.decode() for field, value in head if field == 1]
    place, weight = next(
        (i, t) for i, (field, t) in enumerate(graph) if field == 5 and tensor_name(t) == inputs[1]
    )
    fields = wire.decode(weight)
    rows, width = (value for field, value in fields if field == 1)
    where = {k.decode(): v.decode() for k, v in (dict(wire.decode(v)).values() for f, v in fields if f == 13)}
    offset, row = int(where["offset"]), int(where["length"]) // rows
    dtype, pieces, nodes = dict(fields)[2], [], []
    for part in range(parts):
        begin, end = rows * part // parts, rows * (part + 1) // parts
        name = f"{inputs[1]}.{part}"
        begin_byte, length = offset + begin * row, (end - begin) * row
        pieces.append(
            (5, wire.external(name, dtype, [end - begin, width], where["location"], begin_byte, length))
        )
        attributes = [("transB", 1)]
        nodes.append((1, wire.node("Gemm", [inputs[0], name], [f"/head/{part}"], attributes)))
    output = next(value.decode() for field, value in head if field == 2)
    joined = wire.node("Concat", [f"/head/{part}" for part in range(parts)], [output], [("axis", 1)])
    graph[place : place + 1] = pieces
    at += len(pieces) - 1 if place < at else 0
    graph[at : at + 1] = [*nodes, (1, joined)]
    model = [(field, wire.encode(graph) if field == 7 else value) for field, value in model]
    move_data(f"{folder}/{where['location']}", f"{out}/{where['location']}", consume)
    with open(f"{out}/model.onnx", "wb") as file:
        file.write(wire.encode(model))


def is_gemm(node):
    return any(field == 4 and value == b"Gemm" for field, value in wire.decode(node))


def tensor_name(tensor):
    return dict(wire.decode(tensor))[8].decode()


def move_data(source, target, consume):
    """Renames the weights, or has the kernel copy them."""
    if consume:
        return os.rename(source, target)
    with open(source, "rb") as begin, open(target, "wb") as end:
        left = os.fstat(begin.fileno()).st_size
        while left > 0:
            left -= os.copy_file_range(begin.fileno(), end.fileno(), min(left, 1 << 30))
