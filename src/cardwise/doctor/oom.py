"""How programs say that the *card's* memory is at its end. For checks."""

from __future__ import annotations

import re
from datetime import datetime

from cardwise.adapters.symptoms import ToldPod
from cardwise.doctor.words import around, last_words

GPU_OOM = re.compile(
    r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|torch(?:\.cuda)?\.OutOfMemoryError|"
    r"No available memory for the cache blocks|[Ff]ree memory on device .* is less than desired GPU memory utilization"
)
AROUND = 80
"""Characters that are shown on both sides of it."""


def gpu_ends(pod: ToldPod, now: datetime) -> tuple[str, ...]:
    """What containers of the pod said of it within the last day, each once."""
    found = dict[str, None]()
    for container, words in last_words(pod, now, overcome=True):
        match = GPU_OOM.search(words)
        if match:
            text = around(match, AROUND).strip()
            found[f"container {container}: {text}"] = None
    return tuple(found)
