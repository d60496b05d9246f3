"""Rounds the weights of a graph to 8 bits, as ONNX Runtime runs them fastest.

    onnx_w8.py ONNX_DIR OUT_DIR

Products with constant weights become MatMulNBits of 8 bits in blocks of 32, which may round their
inputs to 8 bits too (accuracy level 4).  The quantiser knows MatMul alone, so every Gemm becomes one
first, its bias added behind it.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer


def as_matmul(node, constants, graph):
    """The nodes that compute a Gemm with a constant, transposed weight."""
    given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    if given.get("transB", 0) != 1 or given.get("transA", 0) != 0 or node.input[1] not in constants:
        return [node]
    weight = constants[node.input[1]]
    turned = numpy_helper.from_array(
        np.ascontiguousarray(numpy_helper.to_array(weight).T), f"{weight.name}/turned"
    )
    graph.initializer.remove(weight)
    graph.initializer.append(turned)
    product = f"{node.output[0]}/product"
    return [
        helper.make_node("MatMul", [node.input[0], turned.name], [product]),
        helper.make_node("Add", [product, node.input[2]], list(node.output)),
    ]


source, out = Path(sys.argv[1]), Path(sys.argv[2])
out.mkdir(parents=True)
model = onnx.load(source / "model.onnx")
constants = {tensor.name: tensor for tensor in model.graph.initializer}
nodes = []
for node in model.graph.node:
    nodes += as_matmul(node, constants, model.graph) if node.op_type == "Gemm" else [node]
del model.graph.node[:]
model.graph.node.extend(nodes)
quantizer = MatMulNBitsQuantizer(model, bits=8, block_size=32, is_symmetric=True, accuracy_level=4)
quantizer.process()
rounded = quantizer.model.model
count = sum(node.op_type == "MatMulNBits" for node in rounded.graph.node)
if count == 0:
    sys.exit("no product of the graph was rounded")
onnx.save(rounded, out / "model.onnx", save_as_external_data=True, location="model.onnx.data")
