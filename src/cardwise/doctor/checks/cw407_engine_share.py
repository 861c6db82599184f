"""CW407: an engine takes a share of the whole card, and that is more than its slice (case C36)."""

from __future__ import annotations

from collections.abc import Iterable

from cardwise.adapters import wire
from cardwise.adapters.allocations import bound_pod
from cardwise.adapters.symptoms import ToldContainer, ToldPod
from cardwise.core.capacity.engines import SHARE_FLAGS, ShareFlag, SliceShape, share_of
from cardwise.doctor.facts import Facts, with_card
from cardwise.doctor.findings import CERTAIN, LIKELY, Check, Finding
from cardwise.doctor.oom import gpu_ends

PROGRAMS = {"vllm": "vllm", "sglang": "sglang", "text-generation-launcher": "tgi", "text-generation-inference": "tgi"}
"""What of a command line or an image's name tells the engine."""


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each container with a slice whose engine is told, or takes by default, more."""
    memory = {card.uuid: card.memory_total_mib for card in facts.cards}
    for pod in facts.gpu_pods:
        for container in with_card(pod):
            engine = _engine(facts.claim(pod).engine, container)
            told = _share(SHARE_FLAGS[engine], container) if engine is not None else None
            if engine is None or told is None:
                continue
            slice_mib, card_mib = _slice(pod, container.name, memory)
            if 0 < slice_mib < card_mib and told[0] * card_mib > slice_mib:
                yield _finding(pod, container, engine, told, (slice_mib, card_mib), gpu_ends(pod, facts.taken))


def _engine(named: str, container: ToldContainer) -> str | None:
    line = " ".join((container.image, *container.command, *container.args[:2]))
    found = named or next((engine for word, engine in PROGRAMS.items() if word in line), "")
    return found if found in SHARE_FLAGS else None


def _slice(pod: ToldPod, container: str, memory: dict[str, int]) -> tuple[int, int]:
    """MiB that the container has of its smallest card, and MiB of that card; zeros if it is not known."""
    try:
        allocation = bound_pod(pod).allocation
    except ValueError:
        return 0, 0
    shares = dict(allocation.containers).get(container, ()) if allocation else ()
    return min(((share.memory_mib, memory[share.uuid]) for share in shares if share.uuid in memory), default=(0, 0))


def _share(flag: ShareFlag, container: ToldContainer) -> tuple[float, str] | None:
    """What the engine takes, and how that reads; None if it is told in bytes, by us, or takes what is unknown."""
    line = [*container.command, *container.args]
    values = list(_values(line, flag.spellings))
    if any(_values(line, flag.absolute)):
        return None
    env = next((each.value for each in container.env if flag.env and each.name == flag.env), "")
    text = values[-1] if values else env or flag.default
    if text is None or wire.ENV_ENGINE_SHARE in text:
        return None
    try:
        return float(text), f"{flag.name} {text}" if values or env else f"{flag.name} is not given: {text} by default"
    except ValueError:
        return None


def _values(line: list[str], spellings: tuple[str, ...]) -> Iterable[str]:
    for arg, after in zip(line, [*line[1:], ""], strict=True):
        name, equals, value = arg.partition("=")
        if name in spellings:
            yield value if equals else after


def _finding(
    pod: ToldPod,
    container: ToldContainer,
    engine: str,
    told: tuple[float, str],
    sizes_mib: tuple[int, int],
    ends: tuple[str, ...],
) -> Finding:
    (share, text), (slice_mib, card_mib) = told, sizes_mib
    right = share_of(engine, SliceShape(slice_mib, card_mib, 0, card_mib))
    write = f"{SHARE_FLAGS[engine].name}={right}" if isinstance(right, str) else "a larger slice"
    return Finding(
        "CW407",
        f"pod {pod.name}",
        frozenset({f"pod:{pod.name}"}),
        f"pod {pod.name}: {engine} takes {share:.0%} of the whole card, {share * card_mib:.0f} MiB, and its slice has "
        f"{slice_mib}",
        (f"container {container.name}: {text}; the card has {card_mib} MiB", *ends),
        f"annotate the pod's template {wire.ANNOTATION_ENGINE}: {engine}, and cardwise tells it; or write {write}",
        CERTAIN if ends else LIKELY,
    )


CHECK = Check("CW407", "An engine takes more of the card than its slice", find, frozenset({"CW409", "CW411"}))
