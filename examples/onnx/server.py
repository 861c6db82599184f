"""A model server for digits.onnx: ONNX Runtime behind the Open Inference Protocol v2, JSON tensors.

By itself it runs each request as it comes, so a gateway before it makes the batches. With --batched it makes them
itself: each row is one call of a function under cardwise.batching, whoever asks.
"""

from __future__ import annotations

import argparse
import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import numpy as np
import onnxruntime
from aiohttp import web

from cardwise.batching import NotServedError, batched

WIDTH = 64
MAX_BATCH = 32
FLOATS = np.typing.NDArray[np.float32]


class Row(NamedTuple):
    """The answer to one row. together: how many rows the model was run on at a time."""

    digit: int
    probabilities: list[float]
    together: int


class WrongError(Exception):
    """A request that cannot be answered, and why."""


class Model:
    """The ONNX model. Runs on one thread: many small requests gain nothing from more."""

    def __init__(self, path: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(self, x: FLOATS) -> list[Row]:
        """An answer for each row of x, [rows, 64]."""
        digits, probabilities = self._session.run(["digit", "probabilities"], {"x": x})
        pairs = zip(digits.tolist(), probabilities.tolist(), strict=True)
        return [Row(digit, each, len(x)) for digit, each in pairs]


Answer = Callable[[FLOATS], Awaitable[list[Row]]]


def one_by_one(model: Model) -> Answer:
    """Run each request as it came, beside the event loop."""

    async def answer(x: FLOATS) -> list[Row]:
        return await asyncio.to_thread(model.run, x)

    return answer


def in_batches(model: Model) -> Answer:
    """Run rows of all requests together."""

    @batched(max_batch=MAX_BATCH)
    def classify(rows: list[FLOATS]) -> list[Row]:
        return model.run(np.stack(rows))

    async def answer(x: FLOATS) -> list[Row]:
        calls = [asyncio.create_task(classify(row)) for row in x]
        try:
            return await asyncio.gather(*calls)
        finally:
            for call in calls:  # if one was not served, the others of its request are of no use
                call.cancel()

    return answer


# ---------------------------------------------------------------- the protocol


def read(body: object) -> tuple[str | None, FLOATS]:
    """The request's id, and its rows. Raises WrongError."""
    try:
        (tensor,) = body["inputs"]
        name, datatype, shape, data = (tensor[key] for key in ("name", "datatype", "shape", "data"))
        x = np.array(data, np.float32).reshape(shape)
    except (TypeError, KeyError, ValueError) as exc:
        raise WrongError(f"not a request with one tensor: {exc!r}") from exc
    if (name, datatype) != ("x", "FP32") or x.ndim != 2 or x.shape[1] != WIDTH or not len(x):
        raise WrongError(f"the input is {name!r} {datatype} {shape}, and must be 'x' FP32 [rows, {WIDTH}]")
    return body.get("id"), x


def told(rows: list[Row], request_id: str | None) -> dict[str, object]:
    """The answer."""
    n = len(rows)
    digits = {"name": "digit", "datatype": "INT64", "shape": [n], "data": [row.digit for row in rows]}
    data = [value for row in rows for value in row.probabilities]
    probabilities = {"name": "probabilities", "datatype": "FP32", "shape": [n, 10], "data": data}
    answer = {
        "model_name": "digits",
        "model_version": "1",
        "parameters": {"together": max(row.together for row in rows)},
        "outputs": [digits, probabilities],
    }
    return answer if request_id is None else {**answer, "id": request_id}


METADATA = {
    "name": "digits",
    "versions": ["1"],
    "platform": "onnxruntime_onnx",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, WIDTH]}],
    "outputs": [
        {"name": "digit", "datatype": "INT64", "shape": [-1]},
        {"name": "probabilities", "datatype": "FP32", "shape": [-1, 10]},
    ],
}


def app_of(answer: Answer) -> web.Application:
    """The routes of the protocol."""

    async def infer(request: web.Request) -> web.Response:
        try:
            request_id, x = read(await request.json())
            return web.json_response(told(await answer(x), request_id))
        except (WrongError, ValueError) as error:
            return web.json_response({"error": str(error)}, status=400)
        except NotServedError as error:
            seconds = str(math.ceil(error.retry_after_s or 1))
            return web.json_response({"error": str(error)}, status=429, headers={"Retry-After": seconds})

    def tells(content: dict[str, object]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def tell(_request: web.Request) -> web.Response:
            return web.json_response(content)

        return tell

    app = web.Application()
    app.router.add_get("/v2", tells({"name": "digits-server", "version": "1", "extensions": []}))
    app.router.add_get("/v2/health/live", tells({"live": True}))
    app.router.add_get("/v2/health/ready", tells({"ready": True}))
    app.router.add_get("/v2/models/digits", tells(METADATA))
    app.router.add_get("/v2/models/digits/ready", tells({"ready": True}))
    app.router.add_post("/v2/models/digits/infer", infer)
    return app


def main() -> None:
    """Serve until it is told to stop."""
    parser = argparse.ArgumentParser(description="Serve digits.onnx.")
    parser.add_argument("--model", default="digits.onnx")
    parser.add_argument("--port", type=int, default=8103)
    parser.add_argument("--batched", action="store_true", help="make batches here, without a gateway")
    args = parser.parse_args()
    model = Model(args.model)
    answer = in_batches(model) if args.batched else one_by_one(model)
    web.run_app(app_of(answer), host="127.0.0.1", port=args.port)


if __name__ == "__main__":
    main()
