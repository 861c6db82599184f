"""Text Generation Inference: a share that its allocator cannot exceed, and with a known model the tokens of a batch.

``--cuda-memory-fraction f`` (or CUDA_MEMORY_FRACTION): PyTorch's allocator is limited to f of the card, and the KV
cache is sized from what that leaves. The CUDA context lies outside. Holds for v3; the project is in maintenance.
Source: https://huggingface.co/docs/text-generation-inference/reference/launcher.
"""

from __future__ import annotations

from cardwise.core.capacity.engines.budget import Budget, EngineSettings, Needs, ShareFlag, SliceShape, share_text

SHARE = ShareFlag(("--cuda-memory-fraction",), default="1.0", env="CUDA_MEMORY_FRACTION")
NOTES = ("the CUDA context and NCCL lie outside the share and are in the margin",)
_KV_DTYPES = {"fp8": "fp8_e4m3fn", "fp8_e4m3": "fp8_e4m3fn", "fp8_e5m2": "fp8_e5m2"}


def settings(slice_: SliceShape, needs: Needs | None, budget: Budget) -> EngineSettings:
    """Flags of ``text-generation-launcher``."""
    args = [f"{SHARE.name}={share_text(slice_.memory_mib - budget.margin_mib, slice_.seen_mib)}"]
    if needs is None:
        return EngineSettings(tuple(args), (), NOTES)
    args += [
        f"--max-batch-total-tokens={budget.tokens}",
        f"--max-total-tokens={needs.max_context}",
        f"--max-concurrent-requests={budget.sequences}",
    ]
    if needs.tp > 1:
        args.append(f"--num-shard={needs.tp}")
    if needs.kv_dtype in _KV_DTYPES:
        args.append(f"--kv-cache-dtype={_KV_DTYPES[needs.kv_dtype]}")
    if needs.quantization is not None:
        args.append(f"--quantize={needs.quantization}")
    if not needs.graph_bytes:
        args.append("--cuda-graphs=0")
    return EngineSettings(
        tuple(args), (), (*NOTES, *budget.notes), kv_bytes=budget.kv_bytes, sequences=budget.sequences
    )
