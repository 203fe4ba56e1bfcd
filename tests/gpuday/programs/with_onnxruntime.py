"""ONNX Runtime on the GPU. Imports nothing of this project; needs the package onnx to make a model."""

from __future__ import annotations

import numpy
import onnxruntime
from say import main


def runs():
    """A product of two matrices on the GPU, if this build of ONNX Runtime can use one."""
    providers = onnxruntime.get_available_providers()
    yield "providers", providers
    if "CUDAExecutionProvider" not in providers:
        return
    from onnx import TensorProto, helper

    names = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1024, 1024]) for name in "abc"]
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["c"])], "product", names[:2], names[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CUDAExecutionProvider"])
    ones = numpy.ones((1024, 1024), dtype=numpy.float32)
    (product,) = session.run(None, {"a": ones, "b": ones})
    yield "runs on", session.get_providers()[0]
    yield "its product is right", float(product.sum()) == 1024.0**3


main(globals())
