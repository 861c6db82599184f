"""Engine profiles: from a slice of a card to the flags that keep an inference engine inside it (SPEC I1).

One engine, one small module, with the versions its flags hold for and where they are documented. Refuses to pretend:
an engine that cannot be bounded says so in its notes. A new engine is a module with ``settings`` and a line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cardwise.core.capacity.engines import onnxruntime, pytorch, sglang, tensorrt_llm, tgi, triton, vllm
from cardwise.core.capacity.engines.budget import (
    MIB_BYTES,
    Budget,
    EngineSettings,
    Needs,
    ShareFlag,
    Shortage,
    SliceShape,
    budget,
    margin_mib,
    share_text,
)

__all__ = [
    "ENGINES",
    "MIB_BYTES",
    "SHARE_FLAGS",
    "EngineSettings",
    "Needs",
    "ShareFlag",
    "Shortage",
    "SliceShape",
    "flags_for",
    "margin_mib",
    "share_of",
    "share_text",
]

_PROFILES: Mapping[str, Callable[[SliceShape, Needs | None, Budget], EngineSettings]] = {
    "vllm": vllm.settings,
    "sglang": sglang.settings,
    "tgi": tgi.settings,
    "triton": triton.settings,
    "tensorrt-llm": tensorrt_llm.settings,
    "onnxruntime": onnxruntime.settings,
    "pytorch": pytorch.settings,
}
ENGINES = tuple(_PROFILES)
"""Names of the known engines."""
SHARE_FLAGS: Mapping[str, ShareFlag] = {"vllm": vllm.SHARE, "sglang": sglang.SHARE, "tgi": tgi.SHARE}
"""Of the engines that a share on the command line bounds. The others are bounded by their own files, or not at all."""


def flags_for(
    engine: str, slice_: SliceShape, needs: Needs | None, *, reserve_mib: int | None = None
) -> EngineSettings:
    """The settings that keep ``engine`` inside a slice; with ``needs`` absolute ones where the engine has them.

    reserve_mib: kept free instead of :func:`margin_mib`. A model that does not fit is a refusal in the answer.
    Raises ValueError for an engine that is not known.
    """
    if engine not in _PROFILES:
        raise ValueError(f"no engine {engine!r} is known; write {', '.join(ENGINES)}")
    divided = budget(slice_, needs, reserve_mib)
    if isinstance(divided, Shortage):
        return EngineSettings((), (), (), refusal=divided)
    return _PROFILES[engine](slice_, needs, divided)


def share_of(engine: str, slice_: SliceShape) -> str | Shortage:
    """The share of what it sees that ``engine`` may be told, of a model that is not known, as it is written.

    For an engine without such a flag, what of the slice is left beside the margin, for the program to use.
    Raises ValueError for an engine that is not known.
    """
    told = flags_for(engine, slice_, None)
    if told.refusal is not None:
        return told.refusal
    flag = SHARE_FLAGS.get(engine)
    if flag is None:
        return share_text(slice_.memory_mib - margin_mib(slice_.memory_mib), slice_.seen_mib)
    return next(arg.partition("=")[2] for arg in told.args if arg.startswith(f"{flag.name}="))
