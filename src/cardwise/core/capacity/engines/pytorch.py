"""PyTorch: a share that its caching allocator cannot exceed, set by the program itself.

``torch.cuda.set_per_process_memory_fraction(f)``: f of the card, per process, of the caching allocator alone. The
variable makes it give memory back once 80 % of the share are used: ``PYTORCH_CUDA_ALLOC_CONF`` is known to all versions
(newer ones prefer ``PYTORCH_ALLOC_CONF`` and still read it). That a variable can set the share too is documented for
versions to come; it is not relied upon, for older ones end with an error at it. Holds for
2.1 and later. Sources: https://docs.pytorch.org/docs/stable/notes/cuda.html;
https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.set_per_process_memory_fraction.html.
"""

from __future__ import annotations

from cardwise.core.capacity.engines.budget import Budget, EngineSettings, Needs, SliceShape, share_text

ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "garbage_collection_threshold:0.8")


def settings(slice_: SliceShape, _needs: Needs | None, budget: Budget) -> EngineSettings:
    """A line for the program, before it allocates."""
    share = share_text(slice_.memory_mib - budget.margin_mib, slice_.seen_mib)
    notes = (
        "the share is of one process: divide it where a container has several",
        "the CUDA context, cuBLAS, cuDNN and NCCL lie outside the caching allocator and are in the margin",
    )
    return EngineSettings(
        (), (ALLOCATOR,), (*notes, *budget.notes), snippet=f"torch.cuda.set_per_process_memory_fraction({share})"
    )
