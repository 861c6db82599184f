"""ONNX Runtime: the arena of its CUDA provider, in bytes; cuDNN, cuBLAS and the context lie outside.

``gpu_mem_limit`` bounds the arena alone and is a provider option of the program, not a flag. Held down beside it:
``arena_extend_strategy`` (the default doubles what it takes) and ``cudnn_conv_use_max_workspace``. Holds for 1.14 and
later. Source: https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html.
"""

from __future__ import annotations

from cardwise.core.capacity.engines.budget import MIB_BYTES, Budget, EngineSettings, Needs, SliceShape


def settings(slice_: SliceShape, _needs: Needs | None, budget: Budget) -> EngineSettings:
    """Python for the program that makes the session."""
    limit = (slice_.memory_mib - budget.margin_mib) * MIB_BYTES
    lines = (
        'providers = [("CUDAExecutionProvider", {',
        f'    "gpu_mem_limit": {limit},',
        '    "arena_extend_strategy": "kSameAsRequested",',
        '    "cudnn_conv_use_max_workspace": "0",',
        "})]",
    )
    notes = (
        "gpu_mem_limit is of one session: divide it where a process has several",
        "cuDNN, cuBLAS and the CUDA context lie outside the arena and are in the margin",
    )
    return EngineSettings((), (), (*notes, *budget.notes), snippet="\n".join(lines))
