"""Ask a server of digits.onnx 400 times, one row a time, many at once; compare each answer with the model run here."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

import aiohttp
import numpy as np
import onnxruntime
from sklearn.datasets import load_digits

REQUESTS, CALLERS = 400, 40
NEAR = 1e-5
"""Sums of float32 differ in their last places with how many rows are computed together."""


async def ask(url: str, rows: np.ndarray) -> list[dict[str, object]]:
    """The answer to each row, in order."""
    answers: list[dict[str, object]] = [{}] * len(rows)
    left = iter(range(len(rows)))

    async def caller(session: aiohttp.ClientSession) -> None:
        for i in left:
            tensor = {"name": "x", "datatype": "FP32", "shape": [1, rows.shape[1]], "data": rows[i].tolist()}
            body = {"id": str(i), "inputs": [tensor]}
            async with session.post(f"{url}/v2/models/digits/infer", json=body, raise_for_status=True) as answer:
                answers[i] = await answer.json()

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(caller(session) for _ in range(CALLERS)))
    return answers


def main() -> None:
    """Print what came back; exit code 1 if an answer is another's."""
    url = sys.argv[1]
    rows = load_digits().data[:REQUESTS].astype(np.float32)
    answers = asyncio.run(ask(url, rows))
    session = onnxruntime.InferenceSession("digits.onnx", providers=["CPUExecutionProvider"])
    digits, probabilities = session.run(["digit", "probabilities"], {"x": rows})
    same = 0
    for i, answer in enumerate(answers):
        digit, probability = (output["data"] for output in answer["outputs"])
        same += (
            answer["id"] == str(i) and digit == [digits[i]] and np.allclose(probability, probabilities[i], atol=NEAR)
        )
    sizes = Counter(answer["parameters"]["together"] for answer in answers)
    runs = sum(count // size for size, count in sizes.items())
    sys.stdout.write(f"{same} of {len(answers)} answers are those of the model run alone\n")
    sys.stdout.write(f"the model ran {runs} times, on {min(sizes)} to {max(sizes)} rows\n")
    if same < len(answers):
        sys.exit(1)


if __name__ == "__main__":
    main()
