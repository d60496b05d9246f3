"""Rounds the weights of a graph to 8 bits, as ONNX Runtime runs them fastest.

    onnx_w8.py ONNX_DIR OUT_DIR

Products with constant weights become MatMulNBits of 8 bits in blocks of 32, which may round their
inputs to 8 bits too (accuracy level 4).
"""

import sys
from pathlib import Path

import onnx
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

source, out = Path(sys.argv[1]), Path(sys.argv[2])
out.mkdir(parents=True)
model = onnx.load(source / "model.onnx")
quantizer = MatMulNBitsQuantizer(model, bits=8, block_size=32, is_symmetric=True, accuracy_level=4)
quantizer.process()
rounded = quantizer.model.model
count = sum(node.op_type == "MatMulNBits" for node in rounded.graph.node)
if count == 0:
    sys.exit("no product of the graph was rounded")
onnx.save(rounded, out / "model.onnx", save_as_external_data=True, location="model.onnx.data")
