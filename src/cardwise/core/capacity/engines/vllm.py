"""vLLM: a share of what it sees as the card, and with a known model the KV cache in bytes.

``--gpu-memory-utilization u``: weights, activations and KV cache get ⌈total · u⌉ bytes, and the start fails unless so
much is free (``request_memory`` in vllm/v1/worker/utils.py). The CUDA context lies outside: that is what the margin is
for. 0.92 of the whole card unless told, 0.9 still in v0.16. ``--kv-cache-memory-bytes K`` sets the KV cache and has u
ignored for it, but the check at the start still uses u: both are set. Holds for v0.14.1 to v0.29; before, the second
flag is not known. Sources: vllm/config/cache.py; https://docs.vllm.ai/en/latest/cli/serve/;
https://docs.vllm.ai/en/v0.16.0/api/vllm/config/cache/ for the older default.
"""

from __future__ import annotations

from cardwise.core.capacity.engines.budget import Budget, EngineSettings, Needs, ShareFlag, SliceShape, share_text

SHARE = ShareFlag(
    ("--gpu-memory-utilization", "--gpu_memory_utilization"),
    default="0.92",
    absolute=("--kv-cache-memory-bytes", "--kv_cache_memory_bytes"),
)
NOTES = (
    "the CUDA context, and what libraries allocate beside PyTorch, lie outside vLLM's count and are in the margin",
    "vLLM measures the whole card while it starts: start one engine per card at a time, or set the KV cache in bytes",
)


def settings(slice_: SliceShape, needs: Needs | None, budget: Budget) -> EngineSettings:
    """Flags of ``vllm serve``."""
    share = share_text(slice_.memory_mib - budget.margin_mib, slice_.seen_mib)
    args = [f"{SHARE.name}={share}"]
    if needs is None:
        return EngineSettings(tuple(args), (), NOTES)
    if budget.kv_bytes:
        args.append(f"--kv-cache-memory-bytes={budget.kv_bytes}")
    args += [f"--max-model-len={needs.max_context}", f"--max-num-seqs={budget.sequences}"]
    if needs.tp > 1:
        args.append(f"--tensor-parallel-size={needs.tp}")
    if needs.kv_dtype is not None:
        args.append(f"--kv-cache-dtype={needs.kv_dtype}")
    if needs.quantization is not None:
        args.append(f"--quantization={needs.quantization}")
    if not needs.graph_bytes:
        args.append("--enforce-eager")
    return EngineSettings(
        tuple(args), (), (*NOTES, *budget.notes), kv_bytes=budget.kv_bytes, sequences=budget.sequences
    )
