"""TensorRT-LLM: the KV cache in tokens and bytes; its own share is of what is *free*, and bounds nothing here.

``free_gpu_memory_fraction`` (0.9 unless told) is taken of what is free after the engine is loaded, which on a shared
card is also the neighbours'. ``max_tokens`` and ``max_gpu_total_bytes`` of ``KvCacheConfig`` are absolute, and the
smallest of the three counts; so they need a known model. Holds for 1.0 to 1.4. Sources:
https://nvidia.github.io/TensorRT-LLM/llm-api/reference/KvCacheConfig.html;
https://nvidia.github.io/TensorRT-LLM/commands/trtllm-serve.html.
"""

from __future__ import annotations

from cardwise.core.capacity.engines.budget import Budget, EngineSettings, Needs, SliceShape

_UNKNOWN = (
    "TensorRT-LLM has no bound that holds on a shared card without a known model: its share is of what is free, also "
    "what neighbours will take; tell the model, or ask for a MIG slice"
)


def settings(_slice: SliceShape, needs: Needs | None, budget: Budget) -> EngineSettings:
    """Flags of ``trtllm-serve``, and a YAML file for its ``--config`` (``--extra_llm_api_options`` before 1.2)."""
    if needs is None:
        return EngineSettings((), (), (_UNKNOWN,))
    args = [f"--max_seq_len={needs.max_context}", f"--max_batch_size={budget.sequences}"]
    if needs.tp > 1:
        args.append(f"--tp_size={needs.tp}")
    lines = ["kv_cache_config:", f"  max_tokens: {budget.tokens}"]
    if budget.kv_bytes:
        lines.append(f"  max_gpu_total_bytes: {budget.kv_bytes}")
    if needs.kv_dtype is not None:
        lines.append(f"  dtype: {'fp8' if needs.kv_dtype.startswith('fp8') else needs.kv_dtype}")
    if not needs.graph_bytes:
        lines.append("cuda_graph_config: null")
    notes = ("weights, activations and workspaces are not bounded; lower --max_num_tokens where they exceed the plan",)
    return EngineSettings(
        tuple(args),
        (),
        (*notes, *budget.notes),
        snippet="\n".join(lines),
        kv_bytes=budget.kv_bytes,
        sequences=budget.sequences,
    )
