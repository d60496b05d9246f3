"""Makes foreign.onnx, foreign.bin and wire.onnx with the onnx package (1.23), as other exporters would.

foreign.onnx: every way other tools store a tensor, a subgraph, a second operator set.
wire.onnx: what smelt-onnx can write, in the same field order, for a byte-for-byte comparison.
"""
import struct
from pathlib import Path

import onnx
from onnx import TensorProto as T
from onnx import helper as h

here = Path(__file__).parent


def typed(name, dtype, dims, field, values):
    tensor = T(name=name, data_type=dtype, dims=dims)
    getattr(tensor, field).extend(values)
    return tensor


def raw(name, dtype, dims, data):
    return T(name=name, data_type=dtype, dims=dims, raw_data=data)


def external(name, dims, **entries):
    tensor = T(name=name, data_type=T.FLOAT, dims=dims, data_location=T.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


initializers = [
    typed("float", T.FLOAT, [3], "float_data", [1.5, -2.0, 0.25]),
    typed("double", T.DOUBLE, [2], "double_data", [0.1, -3.0]),
    typed("int64", T.INT64, [3], "int64_data", [-1, 0, 1 << 40]),
    typed("int32", T.INT32, [2], "int32_data", [-7, 7]),
    typed("int8", T.INT8, [2], "int32_data", [-128, 127]),
    typed("uint8", T.UINT8, [2], "int32_data", [0, 255]),
    typed("bool", T.BOOL, [2], "int32_data", [1, 0]),
    typed("half", T.FLOAT16, [2], "int32_data", [0x3C00, 0xC000]),
    typed("brain", T.BFLOAT16, [2], "int32_data", [0x3F80, 0xC000]),
    typed("uint32", T.UINT32, [2], "uint64_data", [0, 0xFFFFFFFF]),
    typed("uint64", T.UINT64, [1], "uint64_data", [0xFFFFFFFFFFFFFFFF]),
    raw("raw", T.FLOAT, [2], struct.pack("<2f", 4.0, 8.0)),
    raw("scalar", T.FLOAT, [], struct.pack("<f", 9.0)),
    raw("empty", T.FLOAT, [0], b""),
    raw("large_raw", T.FLOAT, [5000], struct.pack("<5000f", *range(5000))),
    typed("large_float", T.FLOAT, [5000], "float_data", [-float(i) for i in range(5000)]),
    external("outside", [2], location="foreign.bin", offset=8, length=8),
    external("outside_all", [4], location="foreign.bin"),
]
branch = h.make_graph(
    [h.make_node("Add", ["x", "float"], ["inner"])],
    "branch",
    [],
    [h.make_tensor_value_info("inner", T.FLOAT, None)],
)
nodes = [
    h.make_node("Clip", ["x", "", "scalar"], ["clipped"], name="clip"),
    h.make_node("If", ["flag"], ["chosen"], then_branch=branch, else_branch=branch),
    h.make_node("Gelu", ["chosen"], ["gelu"], domain="com.example", alpha=0.5, mode="tanh"),
    h.make_node("Constant", [], ["c"], value=initializers[0]),
    h.make_node("Transpose", ["gelu"], ["y"], perm=[0], domain="ai.onnx"),
]
graph = h.make_graph(
    nodes,
    "foreign",
    [
        h.make_tensor_value_info("x", T.FLOAT, ["n"]),
        h.make_tensor_value_info("flag", T.BOOL, []),
        h.make_tensor_value_info("free", T.FLOAT16, [None, 3]),
    ],
    [h.make_tensor_value_info("y", T.FLOAT, None)],
    initializers,
    value_info=[h.make_tensor_value_info("clipped", T.FLOAT, ["n"])],
)
model = h.make_model(
    graph,
    producer_name="foreign",
    producer_version="1",
    ir_version=9,
    opset_imports=[h.make_opsetid("", 18), h.make_opsetid("com.example", 1)],
)
model.metadata_props.add(key="made", value="by hand")
(here / "foreign.onnx").write_bytes(model.SerializeToString(deterministic=True))
(here / "foreign.bin").write_bytes(struct.pack("<4f", 1.0, 2.0, 3.0, 4.0))

# smelt-onnx leaves empty strings out, so this one has none.
graph = h.make_graph(
    [
        h.make_node(
            "Everything", ["x", "w"], ["y"], name="node", domain="com.example",
            f=0.0, i=0, s="text", fs=[1.0, 2.0], is_=[0, -1, 300], ss=["a", "b"],
            t=raw("t", T.INT64, [2], struct.pack("<2q", 1, 2)),
        )
    ],
    "wire",
    [h.make_tensor_value_info("x", T.FLOAT, ["n", 0, None])],
    [h.make_tensor_value_info("y", T.BFLOAT16, None)],
    [
        raw("w", T.FLOAT16, [2, 1], b"\x01\x02\x03\x04"),
        external("e", [7, 3], location="model.onnx.data", offset=4096, length=84),
    ],
)
model = h.make_model(graph, producer_name="wire", ir_version=8)
del model.opset_import[:]
model.opset_import.add(version=17)
model.opset_import.add(domain="com.example", version=3)
model.metadata_props.add(key="k", value="v")
(here / "wire.onnx").write_bytes(model.SerializeToString(deterministic=True))
