# ruff: noqa: D102 - methods that the library asks for
# mypy: disable-error-code="import-not-found, misc"
"""MLServer before the emulated card: no parallel workers (its faster mode here), blocking work in a thread."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse

from benchmarks.serving.servers.device import HOST, MAX_BATCH, PORT, WINDOW_S, Device


class Emulated(MLModel):
    """A tensor in, a tensor out; MLServer joins and splits them."""

    async def load(self) -> bool:
        self.card = Device()
        return True

    async def predict(self, payload: Any) -> Any:  # noqa: ANN401 - MLServer's types, which are only there
        rows = NumpyCodec.decode_input(payload.inputs[0])
        answers = await asyncio.to_thread(self.card.run, rows.tolist())
        sums = rows[:, 0] * 0 + [answer["sum"] for answer in answers]
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("sum", sums)])


async def main() -> None:
    settings = Settings(
        host=HOST,
        http_port=PORT,
        grpc_port=int(os.environ["PEER_PORT_2"]),
        metrics_port=int(os.environ["PEER_PORT_3"]),
        parallel_workers=0,
        debug=False,
    )
    model = ModelSettings(
        name="emulated", implementation=Emulated, max_batch_size=MAX_BATCH, max_batch_time=max(WINDOW_S, 1e-4)
    )
    await MLServer(settings).start([model])


if __name__ == "__main__":
    asyncio.run(main())
