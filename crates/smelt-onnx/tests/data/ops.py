"""Writes ops-17.onnx and ops-21.onnx: one node a case, its inputs and what it must give.

Every tensor is an initializer: NODE.i0, NODE.i1 ... are inputs, and the result NODE.o0 is held
as NODE.o0.expect.  Results are computed by onnxruntime on the CPU, or, for what it does not
have (4-bit results, bfloat16), by the reference evaluator of the onnx package.

    pip install onnx onnxruntime ml_dtypes numpy
    python ops.py
"""

import pathlib

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

F32, F16, I8, U8, I64 = np.float32, np.float16, np.int8, np.uint8, np.int64
I4, U4, BF16 = ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.bfloat16
random = np.random.default_rng(7)
cases = []


def f(*dims, low=-2.0, high=2.0, dtype=F32):
    return random.uniform(low, high, dims).astype(dtype)


def i(*values, dtype=I64):
    return np.array(values, dtype=dtype)


def case(op, *inputs, outs=1, opset=17, reference=False, **attributes):
    cases.append((opset, op, inputs, outs, reference, attributes))


# --- number by number
for op in "Sin Cos Tan Atan Tanh Sigmoid Erf Exp Neg Abs Sign Floor Ceil Round Relu Softplus HardSwish".split():
    case(op, f(2, 5))
for op in "Sqrt Log Reciprocal".split():
    case(op, f(2, 5, low=0.1))
case("Round", np.array([0.5, 1.5, -2.5, 2.4999], F32))
case("LeakyRelu", f(7), alpha=0.3)
case("Elu", f(7), alpha=0.7)
case("Identity", f(3))
case("Not", np.array([True, False]))
case("IsNaN", np.array([1, np.nan, np.inf], F32))
case("IsInf", np.array([1, -np.inf, np.inf], F32), detect_negative=0)
case("Cast", np.array([1.7, -1.7, 300.4], F32), to=6)
case("Cast", f(5), to=10)
case("CastLike", f(5), np.zeros(1, I64))
# --- pairs
for op in "Add Sub Mul Div".split():
    case(op, f(2, 3), f(3))
    case(op, i(7, -7, 9), i(2, 2, -4))
case("Pow", f(2, 3, low=0.1), f(1))
case("Pow", f(4), i(2))
case("Mod", i(7, -7, 7), i(3, 3, -3))
case("Mod", f(4), f(4), fmod=1)
case("PRelu", f(2, 3), f(3))
for op in "Equal Less LessOrEqual Greater GreaterOrEqual".split():
    case(op, i(1, 2, 3), i(2))
    case(op, f(3), f(2, 1))
for op in "And Or Xor".split():
    case(op, np.array([True, False]), np.array([[True], [False]]))
for op in "Min Max Sum Mean".split():
    case(op, f(2, 3), f(3), f(2, 1))
case("Min", f(2))
case("Clip", f(9), np.array(-0.5, F32), np.array(1, F32))
case("Clip", i(-5, 5, 50), None, np.array(9))
case("Where", np.array([[True], [False]]), f(3), f(2, 3))
# --- products
case("MatMul", f(2, 1, 3, 4), f(5, 4, 2))
case("MatMul", f(4), f(4, 3))
for ta in (0, 1):
    for tb in (0, 1):
        case("Gemm", f(*(4, 3) if ta else (3, 4)), f(*(5, 4) if tb else (4, 5)), f(5), transA=ta, transB=tb, alpha=0.5, beta=2.0)
case("Gemm", f(3, 4), f(4, 5))
case("Conv", f(1, 3, 8, 8), f(4, 3, 4, 4), f(4), strides=[4, 4])
case("Conv", f(2, 4, 7), f(4, 2, 3), group=2, pads=[1, 2], dilations=[2])
# --- norms, softmax, reductions
case("Softmax", f(2, 3, 4), axis=1)
case("LogSoftmax", f(2, 3, 4), axis=-1)
case("LayerNormalization", f(2, 3, 4), f(4), f(4), axis=-1, epsilon=1e-6)
case("LayerNormalization", f(2, 3, 4), f(3, 4), axis=1)
for op in "ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSumExp".split():
    case(op, f(2, 3, 4), axes=[0, -1], keepdims=0)
    case(op, f(2, 3, 4), i(1), opset=21)
case("ReduceSum", f(2, 3, 4), i(1, 2))
case("ReduceSum", f(2, 3), None, noop_with_empty_axes=1)
case("ArgMax", f(3, 4), axis=1, keepdims=0)
case("ArgMax", i(3, 1, 3), axis=0, select_last_index=1)
case("ArgMin", f(3, 4), axis=0)
case("CumSum", f(2, 4), np.array(1))
case("CumSum", i(1, 2, 3), np.array(0), exclusive=1, reverse=1)
# --- layout
case("Reshape", f(2, 6), i(0, 2, -1))
case("Flatten", f(2, 3, 4), axis=2)
case("Transpose", f(2, 3, 4), perm=[2, 0, 1])
case("Squeeze", f(1, 3, 1), i(0))
case("Unsqueeze", f(3), i(0, 2))
case("Concat", f(2, 1), f(2, 3), axis=-1)
case("Split", f(5, 2), i(2, 3), outs=2, axis=0)
case("Split", f(6, 2), outs=3, axis=0)
case("Split", f(5, 2), outs=2, axis=0, num_outputs=2, opset=21)
case("Slice", f(4, 5), i(-1, 1), i(-5, 4), i(0, 1), i(-2, 2))
case("Pad", f(2, 3), i(1, 0, 0, 2), np.array(9, F32))
case("Pad", f(2, 4), i(0, 2, 0, 3), mode="reflect")
case("Pad", f(2, 3), i(1, 1, 1, 1), mode="edge")
case("Pad", f(2, 3), i(2, 1), None, i(1), opset=21)
case("Pad", f(2, 3), i(0, 2, 1, 4), mode="wrap", opset=21)
case("Expand", f(3, 1), i(2, 1, 4))
case("Tile", f(2, 3), i(2, 1))
case("Gather", f(3, 4), i(2, -1), axis=1)
case("GatherElements", f(3, 4), i(0, 2, 1, -1).reshape(1, 4), axis=0)
case("GatherND", f(2, 3, 4), i(0, 2, 1, -1).reshape(2, 2))
case("ScatterND", f(4, 2), i(3, 1).reshape(2, 1), f(2, 2))
case("Trilu", f(3, 4), np.array(1), upper=0)
case("Shape", f(2, 3, 4), start=1)
case("Size", f(2, 3))
case("ConstantOfShape", i(2, 2), value=numpy_helper.from_array(np.array([3], I64)))
case("Range", np.array(1, F32), np.array(4, F32), np.array(0.75, F32))
case("Range", np.array(9), np.array(2), np.array(-3))
for mode, frame in [("nearest", "asymmetric"), ("linear", "half_pixel"), ("linear", "align_corners"), ("linear", "pytorch_half_pixel")]:
    kind = {"nearest_mode": "floor"} if mode == "nearest" else {}
    case("Resize", f(1, 1, 3, 4), None, None, i(1, 1, 5, 7), mode=mode, coordinate_transformation_mode=frame, **kind)
case("Resize", f(1, 2, 4, 4), None, np.array([1, 1, 0.5, 2], F32), mode="linear")
case("Gelu", f(7), opset=21)
case("Gelu", f(7), approximate="tanh", opset=21)
# --- quantisation
case("QuantizeLinear", f(9, low=-99, high=99), np.array(0.5, F32), np.array(3, U8))
case("QuantizeLinear", f(3, 4, low=-99, high=99), f(3, low=0.3, high=1), np.zeros(3, I8), axis=0)
case("QuantizeLinear", np.array([0.25, 0.75, 1.25, -0.25], F32), np.array(0.5, F32))
case("DequantizeLinear", i(-3, 0, 127, dtype=I8), np.array(0.1, F32), np.array(5, I8))
case("DequantizeLinear", i(-3, 0, 9, 2, 4, 5, dtype=I8).reshape(2, 3), f(3), axis=1)
codes = random.integers(-8, 8, (3, 5)).astype(I8)
case("DequantizeLinear", codes, f(3, 3, low=0.1), axis=1, block_size=2, opset=21)
case("DequantizeLinear", codes, f(2, 5, low=0.1), axis=0, block_size=2, opset=21)
case("DequantizeLinear", codes.astype(I4), f(3, 3, low=0.1), axis=1, block_size=2, opset=21)
case("DequantizeLinear", (codes + 8).astype(U4), f(3, 3, low=0.1), (codes[:, :3] + 8).astype(U4), axis=1, block_size=2, opset=21)
case("DequantizeLinear", codes.astype(I4), f(3, low=0.1, dtype=F16), axis=0, opset=21)
case("QuantizeLinear", f(3, 5), f(3, 3, low=0.1), np.zeros((3, 3), I4), axis=1, block_size=2, opset=21, reference=True)
case("QuantizeLinear", f(2, 4, low=-9, high=9), f(1, 4, low=0.1), np.full((1, 4), 7, U4), axis=0, block_size=2, opset=21, reference=True)
case("DequantizeLinear", codes, f(3, low=0.1).astype(BF16), axis=0, opset=21, reference=True)
case("Add", f(5).astype(BF16), f(5).astype(BF16), reference=True)
case("MatMul", f(2, 3, dtype=F16), f(3, 2, dtype=F16))


def expected(model, reference):
    if reference:
        return ReferenceEvaluator(model).run(None, {})
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {})


def tensors(opset, cases):
    nodes, held, outputs = [], [], []
    for number, (_, op, inputs, outs, reference, attributes) in enumerate(cases):
        name = f"{op}.{number}"
        names = [f"{name}.i{at}" if value is not None else "" for at, value in enumerate(inputs)]
        while names and not names[-1]:
            names.pop()
        results = [f"{name}.o{at}" for at in range(outs)]
        node = helper.make_node(op, names, results, name=name, **attributes)
        own = [numpy_helper.from_array(np.asarray(v), n) for n, v in zip(names, inputs) if v is not None]
        infos = [onnx.ValueInfoProto(name=result) for result in results]
        graph = helper.make_graph([node], name, [], infos, own)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        model = onnx.shape_inference.infer_shapes(model)
        values = expected(model, reference)
        held += own + [numpy_helper.from_array(np.asarray(v), r + ".expect") for r, v in zip(results, values)]
        nodes.append(node)
        outputs += [helper.make_tensor_value_info(r, held[-1].data_type, None) for r in results]
    graph = helper.make_graph(nodes, f"operators of set {opset}", [], outputs, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10, producer_name="ops.py")


for opset in (17, 21):
    chosen = [c for c in cases if c[0] == opset]
    path = pathlib.Path(__file__).with_name(f"ops-{opset}.onnx")
    path.write_bytes(tensors(opset, chosen).SerializeToString(deterministic=True))
    print(path.name, len(chosen), "cases", path.stat().st_size, "bytes")
