# ruff: noqa: D102 - methods that the library asks for
# mypy: disable-error-code="import-not-found, misc"
"""LitServe before the emulated card: one worker, batches as its documentation shows them."""

from __future__ import annotations

import litserve

from benchmarks.serving.servers.device import BOUNDED, HOST, MAX_BATCH, PATIENCE_S, PORT, WINDOW_S, Device

Row = list[float]


class Emulated(litserve.LitAPI):
    """Rows as they come: neither stacked nor copied."""

    def setup(self, _device: str) -> None:
        self.card = Device()

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - it reads annotations
        return request["x"]

    def batch(self, inputs: list[Row]) -> list[Row]:
        return inputs

    def predict(self, x: list[Row]) -> list[dict[str, object]]:
        return self.card.run(x)

    def unbatch(self, output: list[dict[str, object]]) -> list[dict[str, object]]:
        return output

    def encode_response(self, output: dict[str, object]) -> dict[str, object]:
        return output


def main() -> None:
    api = Emulated(max_batch_size=MAX_BATCH, batch_timeout=WINDOW_S)
    # a bound on the queue there is none; who has waited too long is answered with 504 instead of being served late
    server = litserve.LitServer(api, accelerator="cpu", timeout=PATIENCE_S if BOUNDED else 30)
    server.run(host=HOST, port=PORT, log_level="error", generate_client_file=False)


if __name__ == "__main__":
    main()
