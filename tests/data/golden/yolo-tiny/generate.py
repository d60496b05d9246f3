"""Makes three small graphs beside this file, and what onnxruntime computes of them.

Run from anywhere: `python generate.py`; it rewrites `yolo.onnx`, `windows.onnx`, `open.onnx` and
`cases.safetensors`.

Made with Python 3.11, numpy 2.4.6, onnx 1.23.2, onnxruntime 1.32.0, safetensors 0.8.0
(`pip install numpy onnx onnxruntime safetensors`).

`yolo.onnx` has what a detector of the YOLO11 kind exports to, at a few channels: convolutions of every
kind, SiLU, splits and joins, pooling upon pooling, attention over places, a Resize, and boxes that are
expectations over bins.  Its weights are drawn.  `windows.onnx` has one output for each way in which
windows can lie and numbers can be looked up.  `open.onnx` takes pictures of any size that is a multiple of 32.
"""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

HERE = Path(__file__).resolve().parent
F32 = TensorProto.FLOAT
OPSET, IR = 17, 8

BINS = 16
"""Distances that the side of a box is an expectation over."""
CLASSES = 5
HEIGHT, WIDTH = 64, 96
OPEN = [2, 3, HEIGHT, WIDTH]
"""What dimensions are where a graph leaves them open."""


class Net:
    """A graph that is written node by node; every method gives the name of its result."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.nodes, self.weights, self.outputs = [], [], []

    def node(self, op, *inputs, outs=1, **attributes):
        names = [f"v{len(self.nodes)}.{n}" for n in range(outs)]
        self.nodes.append(helper.make_node(op, inputs, names, name=f"n{len(self.nodes)}", **attributes))
        return names[0] if outs == 1 else names

    def constant(self, values):
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def floats(self, *values):
        return self.constant(np.array(values, np.float32))

    def ints(self, *values):
        return self.constant(np.array(values, np.int64))

    def conv(self, x, inner, out, kernel=1, stride=1, groups=1, bias=True, pads=None, **more):
        reach = inner // groups * kernel * kernel
        weight = self.random.normal(0, 1.2 / reach**0.5, (out, inner // groups, kernel, kernel))
        inputs = [x, self.constant(weight.astype(np.float32))]
        if bias:
            inputs.append(self.constant(self.random.normal(0, 0.3, out).astype(np.float32)))
        if "auto_pad" not in more:
            more["pads"] = pads or [kernel // 2] * 4
        more.setdefault("dilations", [1, 1])
        return self.node("Conv", *inputs, kernel_shape=[kernel] * 2, strides=[stride] * 2, group=groups, **more)

    def block(self, x, inner, out, kernel=1, stride=1, groups=1, act=True):
        """Convolution and SiLU."""
        y = self.conv(x, inner, out, kernel, stride, groups)
        return self.node("Mul", y, self.node("Sigmoid", y)) if act else y

    def split(self, x, *sizes, axis=1):
        return self.node("Split", x, self.ints(*sizes), outs=len(sizes), axis=axis)

    def concat(self, *parts, axis=1):
        return self.node("Concat", *parts, axis=axis)

    def reshape(self, x, *shape):
        return self.node("Reshape", x, self.ints(*shape), allowzero=0)

    def output(self, value, name, *dims):
        self.nodes.append(helper.make_node("Identity", [value], [name], name=name))
        self.outputs.append(helper.make_tensor_value_info(name, F32, dims or [None] * 4))

    def model(self, inputs):
        given = [helper.make_tensor_value_info(name, F32, dims) for name, dims in inputs.items()]
        graph = helper.make_graph(self.nodes, "graph", given, self.outputs, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)
        onnx.checker.check_model(model)
        return model


def crossing(net, x, inner, out):
    """Two halves, of which one goes on through a bottleneck; all are joined."""
    half = out // 2
    a, b = net.split(net.block(x, inner, out), half, half)
    c = net.block(net.block(b, half, half // 2, 3), half // 2, half, 3)
    return net.block(net.concat(a, b, net.node("Add", b, c)), 3 * half, out)


def pooling(net, x, width):
    """Windows of five upon each other, all joined."""
    found = [net.block(x, width, width // 2)]
    for _ in range(3):
        pool = dict(kernel_shape=[5, 5], strides=[1, 1], pads=[2, 2, 2, 2], dilations=[1, 1], ceil_mode=0)
        found.append(net.node("MaxPool", found[-1], **pool))
    return net.block(net.concat(*found), 2 * width, width)


def attention(net, x, width, heads, rows, columns):
    """Every place looks at every other; the values also pass a convolution of single channels."""
    places, dim = rows * columns, width // heads
    key = dim // 2
    qkv = net.reshape(net.block(x, width, heads * (2 * key + dim), act=False), 1, heads, 2 * key + dim, places)
    q, k, v = net.split(qkv, key, key, dim, axis=2)
    scores = net.node("MatMul", net.node("Transpose", q, perm=[0, 1, 3, 2]), k)
    scores = net.node("Mul", scores, net.floats(key**-0.5))
    shares = net.node("Transpose", net.node("Softmax", scores, axis=-1), perm=[0, 1, 3, 2])
    mixed = net.reshape(net.node("MatMul", v, shares), 1, width, rows, columns)
    own = net.block(net.reshape(v, 1, width, rows, columns), width, width, 3, groups=width, act=False)
    y = net.block(net.node("Add", mixed, own), width, width, act=False)
    x = net.node("Add", x, y)
    return net.node("Add", x, net.block(net.block(x, width, 2 * width), 2 * width, width, act=False))


def head(net, x, inner):
    """Bins of boxes, and classes, of every place of one scale."""
    boxes = net.conv(net.block(net.block(x, inner, 16, 3), 16, 16, 3), 16, 4 * BINS)
    y = net.block(net.block(x, inner, inner, 3, groups=inner), inner, 12)
    y = net.block(net.block(y, 12, 12, 3, groups=12), 12, 12)
    both = net.concat(boxes, net.conv(y, 12, CLASSES))
    return net.reshape(both, 1, 4 * BINS + CLASSES, -1)


def anchors(strides):
    """Middles of all cells, `[1, 2, cells]`, and the stride of each, `[1, cells]`."""
    points, steps = [], []
    for stride in strides:
        rows, columns = HEIGHT // stride, WIDTH // stride
        y, x = np.meshgrid(np.arange(rows) + 0.5, np.arange(columns) + 0.5, indexing="ij")
        points.append(np.stack([x.ravel(), y.ravel()]))
        steps.append(np.full(rows * columns, stride))
    return np.concatenate(points, 1)[None].astype(np.float32), np.concatenate(steps)[None].astype(np.float32)


def yolo():
    net = Net(17)
    x = net.block("images", 3, 8, 3, 2)
    x = net.block(x, 8, 16, 3, 2)
    fine = crossing(net, net.block(x, 16, 24, 3, 2), 24, 24)
    coarse = pooling(net, crossing(net, net.block(fine, 24, 32, 3, 2), 32, 32), 32)
    a, b = net.split(net.block(coarse, 32, 32), 16, 16)
    b = attention(net, b, 16, 2, HEIGHT // 16, WIDTH // 16)
    coarse = net.block(net.concat(a, b), 32, 32)
    # Scales are floats that back ends read while they prepare the graph.
    how = dict(mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    wide = net.node("Resize", coarse, "", net.floats(1, 1, 2, 2), cubic_coeff_a=-0.75, **how)
    fine = crossing(net, net.concat(wide, fine), 56, 24)
    coarse = crossing(net, net.concat(net.block(fine, 24, 24, 3, 2), coarse), 56, 32)
    both = net.concat(head(net, fine, 24), head(net, coarse, 32), axis=2)
    bins, classes = net.split(both, 4 * BINS, CLASSES)
    points, steps = anchors([8, 16])
    cells = steps.shape[1]
    bins = net.node("Transpose", net.reshape(bins, 1, 4, BINS, cells), perm=[0, 2, 1, 3])
    bins = net.node("Softmax", bins, axis=1)
    kernel = net.constant(np.arange(BINS, dtype=np.float32).reshape(1, BINS, 1, 1))
    sides = net.reshape(net.node("Conv", bins, kernel, kernel_shape=[1, 1]), 1, 4, cells)
    low = net.node("Slice", sides, net.ints(0), net.ints(2), net.ints(1), net.ints(1))
    high = net.node("Slice", sides, net.ints(2), net.ints(4), net.ints(1), net.ints(1))
    points = net.constant(points)
    low, high = net.node("Sub", points, low), net.node("Add", high, points)
    middle = net.node("Div", net.node("Add", low, high), net.floats(2))
    boxes = net.node("Mul", net.concat(middle, net.node("Sub", high, low)), net.constant(steps))
    found = net.concat(boxes, net.node("Sigmoid", classes))
    net.output(found, "found", 1, 4 + CLASSES, cells)
    return net.model({"images": [1, 3, HEIGHT, WIDTH]})


def pyramid():
    """Halved five times and doubled once, of sizes that nobody says: an odd one could not be joined."""
    net = Net(29)
    x, inner = "images", 3
    for width in [4, 4, 8, 8]:
        x, inner = net.block(x, inner, width, 3, 2), width
    coarse = net.block(x, inner, 8, 3, 2)
    how = dict(mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    wide = net.node("Resize", coarse, "", net.floats(1, 1, 2, 2), cubic_coeff_a=-0.75, **how)
    found = net.reshape(net.conv(net.concat(wide, x), 16, 6), 0, 6, -1)
    net.output(found, "found", "batch", 6, "cells")
    return net.model({"images": ["batch", 3, "height", "width"]})


def windows():
    net = Net(23)
    given = {"x": [2, 6, 7, 9]}

    def case(name, value):
        net.output(value, name)

    case("conv.dilated", net.conv("x", 6, 5, 3, pads=[2, 2, 2, 2], dilations=[2, 2]))
    case("conv.strided", net.conv("x", 6, 5, 3, 2, pads=[0, 1, 2, 1]))
    case("conv.wide", net.conv("x", 6, 4, 5, 3, pads=[4, 3, 1, 0], dilations=[1, 2], bias=False))
    case("conv.groups", net.conv("x", 6, 8, 3, 1, groups=2))
    case("conv.groups.strided", net.conv("x", 6, 9, 3, 2, groups=3))
    case("conv.channels", net.conv("x", 6, 6, 3, 1, groups=6))
    case("conv.channels.strided", net.conv("x", 6, 12, 5, 2, groups=6, bias=False))
    case("conv.channels.dilated", net.conv("x", 6, 6, 3, 2, groups=6, pads=[0, 3, 2, 1], dilations=[2, 3]))
    case("conv.points", net.conv("x", 6, 7, 1))
    case("conv.points.strided", net.conv("x", 6, 7, 1, 2))
    case("conv.patches", net.conv("x", 6, 7, 2, 2, pads=[0, 0, 0, 0]))
    case("conv.upper", net.conv("x", 6, 5, 4, 3, auto_pad="SAME_UPPER"))
    case("conv.lower", net.conv("x", 6, 5, 4, 3, auto_pad="SAME_LOWER"))
    case("conv.valid", net.conv("x", 6, 5, 4, 3, auto_pad="VALID"))
    for name, kernel, more in [
        ("plain", 2, dict(strides=[2, 2])),
        ("padded", 3, dict(strides=[2, 1], pads=[1, 1, 0, 1])),
        ("dilated", 3, dict(strides=[1, 2], pads=[1, 2, 2, 1], dilations=[2, 2])),
        ("ceil", 3, dict(strides=[2, 3], ceil_mode=1)),
        ("ceil.padded", 3, dict(strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1)),
        ("upper", 3, dict(strides=[2, 2], auto_pad="SAME_UPPER")),
    ]:
        case(f"pool.{name}", net.node("MaxPool", "x", kernel_shape=[kernel] * 2, **more))
    roundings = ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]
    spots = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
    for spot in spots:
        for scale in [(1, 1, 2, 2), (1, 1, 0.6, 1.7)]:
            how = dict(coordinate_transformation_mode=spot)
            label = f"{spot}.{scale[2]}"
            for rounding in roundings:
                value = net.node("Resize", "x", "", net.floats(*scale), mode="nearest", nearest_mode=rounding, **how)
                case(f"resize.{rounding}.{label}", value)
            case(f"resize.linear.{label}", net.node("Resize", "x", "", net.floats(*scale), mode="linear", **how))
        sizes = net.ints(2, 6, 1, 16)
        case(f"resize.linear.{spot}.sizes", net.node("Resize", "x", "", "", sizes, mode="linear", **how))
    return net.model(given)


def shape(dims):
    return [dim.dim_value or size for dim, size in zip(dims, OPEN)]


def cases(name, model, seed):
    """Inputs of random numbers, and every output of onnxruntime without its fusions."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    random = np.random.default_rng(seed)
    inputs = {
        value.name: random.normal(0, 1, shape(value.type.tensor_type.shape.dim)).astype(np.float32)
        for value in model.graph.input
    }
    names = [value.name for value in model.graph.output]
    outputs = dict(zip(names, session.run(names, inputs)))
    assert all(np.isfinite(value).all() and value.size for value in outputs.values())
    tensors = {f"{name}/in/{key}": value for key, value in inputs.items()}
    return tensors | {f"{name}/out/{key}": np.ascontiguousarray(value) for key, value in outputs.items()}


def main():
    tensors = {}
    for seed, (name, model) in enumerate({"yolo": yolo(), "windows": windows(), "open": pyramid()}.items()):
        onnx.save(model, HERE / f"{name}.onnx")
        tensors |= cases(name, model, 100 + seed)
    save_file(tensors, HERE / "cases.safetensors")
    found = tensors["yolo/out/found"]
    print(found.shape, "boxes", np.abs(found[:, :4]).max(), "classes", found[:, 4:].min(), found[:, 4:].max())


if __name__ == "__main__":
    main()
