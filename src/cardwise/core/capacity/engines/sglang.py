"""SGLang: a share that bounds weights and KV cache, and with a known model a bound in tokens.

The pool is what is free after loading less ``free before loading · (1 − f)`` (``_profile_available_bytes`` in
python/sglang/srt/model_executor): weights and pool together take f of what was *free*, never more than f of the card.
Activations and CUDA graphs come on top, so they are taken off first; of a model that is not known,
:data:`RUNTIME_MIB` for them. On a card that others fill the pool shrinks with what is free, and the start may be
refused: safe, and told in the notes. Holds for v0.5. Sources: python/sglang/srt/server_args.py;
https://docs.sglang.io/advanced_features/server_arguments.html.
"""

from __future__ import annotations

from cardwise.core.capacity.engines.budget import (
    Budget,
    EngineSettings,
    Needs,
    ShareFlag,
    SliceShape,
    mib_up,
    share_text,
)

SHARE = ShareFlag(("--mem-fraction-static",), default=None)
RUNTIME_MIB = 1024
"""For activations and graphs of a model that is not known: 512 MiB of workspace and as much of small graphs. A rule of
thumb; SGLang's own default leaves more, for it counts with the whole card."""


def settings(slice_: SliceShape, needs: Needs | None, budget: Budget) -> EngineSettings:
    """Flags of ``python -m sglang.launch_server``."""
    usable = static_mib(slice_.memory_mib - budget.margin_mib, needs)
    args = [f"{SHARE.name}={share_text(usable, slice_.seen_mib)}"]
    busy = share_text(usable, slice_.memory_mib)
    notes = (
        "activations and CUDA graphs lie outside the share; --chunked-prefill-size and --cuda-graph-max-bs bound them",
        "the pool is sized from what is free at the start: on a card that others fill SGLang may refuse to start",
        f"where it does, raise the share to {busy} at most, and only with --max-total-tokens",
    )
    if needs is None:
        return EngineSettings(tuple(args), (), notes)
    args += [
        f"--max-total-tokens={budget.tokens}",
        f"--max-running-requests={budget.sequences}",
        f"--context-length={needs.max_context}",
    ]
    if needs.tp > 1:
        args.append(f"--tp-size={needs.tp}")
    if needs.kv_dtype is not None:
        args.append(f"--kv-cache-dtype={'fp8_e4m3' if needs.kv_dtype == 'fp8' else needs.kv_dtype}")
    if needs.quantization is not None:
        args.append(f"--quantization={needs.quantization}")
    args.append(f"--cuda-graph-max-bs={budget.sequences}" if needs.graph_bytes else "--disable-cuda-graph")
    return EngineSettings(
        tuple(args), (), (*notes, *budget.notes), kv_bytes=budget.kv_bytes, sequences=budget.sequences
    )


def static_mib(usable_mib: int, needs: Needs | None) -> int:
    """What of the usable memory weights and KV cache may take; at least 1, for a slice that is too small for any."""
    if needs is None:
        return max(1, usable_mib - min(RUNTIME_MIB, usable_mib // 2))
    beside = needs.activation_bytes + needs.graph_bytes + needs.context_bytes
    return max(1, usable_mib - mib_up(beside))
