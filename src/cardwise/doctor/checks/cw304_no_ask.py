"""CW304: a container looks for a GPU and its pod asks for none: it was given none."""

from __future__ import annotations

import re
from collections.abc import Iterable

from cardwise.doctor.facts import Facts, with_card
from cardwise.doctor.findings import LIKELY, Check, Finding
from cardwise.doctor.words import around, last_words

NO_DEVICE = re.compile(
    r"no CUDA-capable device|no CUDA GPUs are available|Found no NVIDIA driver|Failed to initialize NVML|"
    r"libcuda\.so\.1: cannot open shared object|CUDA_ERROR_NO_DEVICE|No GPU found|Torch not compiled with CUDA",
    re.IGNORECASE,
)


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each pod."""
    for pod in facts.capture.pods:
        asking = {each.name for each in with_card(pod)}
        for container, words in last_words(pod, facts.taken):
            found = NO_DEVICE.search(words)
            if found is None or container in asking:
                continue
            own = f"container {container} asks for no card"
            beside = f", container {', '.join(sorted(asking))} does" if asking else ""
            yield Finding(
                "CW304",
                f"pod {pod.name}",
                frozenset({f"pod:{pod.name}", f"node:{pod.spec.node_name}"}),
                f"no GPU in {pod.name}: {own}{beside}",
                (f"it ended with: {around(found)}",),
                'put the ask into that container: resources.limits: {nvidia.com/gpu: "1", nvidia.com/gpu.memory: '
                '"4096", nvidia.com/gpu.cuda-cores: "20"}',
                LIKELY,
            )
            break


CHECK = Check("CW304", "A container looks for a GPU and asks for none", find)
