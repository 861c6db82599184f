"""Triton Inference Server: its own pools and queues; what a backend allocates it cannot bound.

``--cuda-memory-pool-byte-size=0:BYTES`` (64 MiB unless told) is Triton's pool for inputs and outputs, not the model's
memory; ``--pinned-memory-pool-byte-size`` is *host* memory. A backend that can be bounded is told in the model's
``config.pbtxt``: for ONNX Runtime, ``gpu_mem_limit``. Holds for 2.x. Sources:
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md;
https://github.com/triton-inference-server/onnxruntime_backend.
"""

from __future__ import annotations

from cardwise.core.capacity.engines.budget import MIB_BYTES, Budget, EngineSettings, Needs, SliceShape

POOL_MIB = 64
"""Triton's own default."""


def settings(slice_: SliceShape, needs: Needs | None, budget: Budget) -> EngineSettings:
    """A flag of ``tritonserver``, and lines of ``config.pbtxt`` for a model of the ONNX Runtime backend."""
    usable_mib = slice_.memory_mib - budget.margin_mib
    pool_mib = min(POOL_MIB, usable_mib)
    arena = max(0, usable_mib - pool_mib) * MIB_BYTES
    lines = [
        "instance_group [ { count: 1 kind: KIND_GPU } ]",
        f'parameters {{ key: "gpu_mem_limit" value: {{ string_value: "{arena}" }} }}',
    ]
    if needs is not None:
        lines.append(f"max_batch_size: {max(1, budget.sequences)}")
    notes = (
        "Triton bounds no backend: the slice holds only if each model's backend is bounded, or the card's limit binds",
        "gpu_mem_limit is of one model of the ONNX Runtime backend: divide it where the server loads several",
    )
    args = (f"--cuda-memory-pool-byte-size=0:{pool_mib * MIB_BYTES}",)
    return EngineSettings(args, (), (*notes, *budget.notes), snippet="\n".join(lines))
