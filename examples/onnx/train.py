"""Train a classifier of handwritten digits on the 1,797 that scikit-learn ships, and write it as digits.onnx.

The data are UCI's "Optical Recognition of Handwritten Digits": 8 x 8 pixels of 0 to 16, ten classes. A quarter is held
out; a model that is right on less than 95 % of it is not written.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

LEAST_ACCURACY = 0.95
BRIGHTEST = 16
OPSET = 17


def trained() -> tuple[MLPClassifier, float]:
    """The classifier, of pixels in [0, 1], and the share of held-out digits on which it is right."""
    pixels, digits = load_digits(return_X_y=True)
    pixels = pixels / BRIGHTEST
    split = train_test_split(pixels, digits, test_size=0.25, random_state=0, stratify=digits)
    seen, held_out, seen_digits, held_out_digits = split
    classifier = MLPClassifier((64,), batch_size=64, learning_rate_init=0.005, max_iter=1000, tol=1e-3, random_state=0)
    classifier.fit(seen, seen_digits)
    return classifier, float(classifier.score(held_out, held_out_digits))


def exported(classifier: MLPClassifier) -> onnx.ModelProto:
    """As ONNX: ``x`` [batch, 64], pixels of 0 to 16, to ``digit`` [batch] and ``probabilities`` [batch, 10]."""
    weights = {"brightest": np.array(BRIGHTEST, np.float32)}
    for layer, (weight, bias) in enumerate(zip(classifier.coefs_, classifier.intercepts_, strict=True)):
        weights[f"weight{layer}"] = weight.astype(np.float32)
        weights[f"bias{layer}"] = bias.astype(np.float32)
    nodes = [
        helper.make_node("Div", ["x", "brightest"], ["pixels"]),
        helper.make_node("Gemm", ["pixels", "weight0", "bias0"], ["linear0"]),
        helper.make_node("Relu", ["linear0"], ["hidden"]),
        helper.make_node("Gemm", ["hidden", "weight1", "bias1"], ["linear1"]),
        helper.make_node("Softmax", ["linear1"], ["probabilities"], axis=1),
        helper.make_node("ArgMax", ["probabilities"], ["digit"], axis=1, keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64])],
        [
            helper.make_tensor_value_info("digit", TensorProto.INT64, ["batch"]),
            helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 10]),
        ],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def main() -> None:
    """Write digits.onnx beside the caller."""
    classifier, accuracy = trained()
    if accuracy < LEAST_ACCURACY:
        sys.exit(f"right on {accuracy:.1%} of the held-out digits, and should be on {LEAST_ACCURACY:.0%}: not written")
    data = exported(classifier).SerializeToString()
    Path("digits.onnx").write_bytes(data)
    sys.stdout.write(f"digits.onnx: {len(data):,} bytes, right on {accuracy:.1%} of the held-out digits\n")


if __name__ == "__main__":
    main()
