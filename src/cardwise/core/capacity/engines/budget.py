"""What a slice leaves an inference engine: the margin, the share of what it sees, and the KV cache that still fits.

Engines take a share of the *whole card* unless told, and what they call total is not always the slice (SPEC I1). Here
is the arithmetic that all profiles share. Refuses to let the numbers only nearly fit: every rounding goes down, and a
model that does not fit is a :class:`Shortage`, a value with its numbers, never a setting that starts and dies (C37).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

MIB_BYTES = 2**20
MARGIN_LEAST_MIB = 512
"""CUDA context, cuBLAS and NCCL workspaces of one process: 300 to 500 MiB on current cards (SPEC A5)."""
MARGIN_SHARE = Fraction(1, 20)
"""Of the slice, for what grows with it: fragments of the allocator, and what a profiling run underestimates."""
SHARE_DIGITS = 4
"""Decimals of a share as it is written: on an 80 GiB card the last one is 8 MiB, all of it given away."""


@dataclass(frozen=True, slots=True)
class SliceShape:
    """A slice of *one* card, as the engine meets it.

    memory_mib: what it may use; card_mib: the physical card's memory. cores_pct: 0 for none asked; no engine has a flag
    for it. seen_mib: what the engine sees as total memory: the whole card's under time-slicing, MPS and a limit on the
    pod's cgroup, the slice's under MIG or a hook. Where in doubt the larger: a share of it is then too small, never
    too large.
    """

    memory_mib: int
    card_mib: int
    cores_pct: int
    seen_mib: int


@dataclass(frozen=True, slots=True)
class Needs:
    """What a model takes of *each* card, after tensor parallelism has divided it; bytes.

    kv_bytes: of ``max_sequences`` at ``max_context`` tokens. graph_bytes: of CUDA graphs; 0 for none, which the flags
    then switch off. context_bytes: of the CUDA context and what else lies outside the engine's own count.
    tp: cards that share the model. kv_dtype, quantization: as the engine names them; None to leave them to it.
    kv_tokens: that ``kv_bytes`` hold, where sequences are not counted at their longest.
    """

    weights_bytes: int
    kv_bytes: int
    activation_bytes: int
    graph_bytes: int
    context_bytes: int
    max_context: int
    max_sequences: int
    tp: int
    kv_dtype: str | None
    quantization: str | None
    kv_tokens: int | None = None

    @property
    def fixed_bytes(self) -> int:
        """All but the KV cache."""
        return self.weights_bytes + self.activation_bytes + self.graph_bytes + self.context_bytes

    @property
    def tokens(self) -> int:
        """How many tokens ``kv_bytes`` hold."""
        return self.max_context * self.max_sequences if self.kv_tokens is None else self.kv_tokens


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why a model does not go into a slice.

    over_mib: how much the model as it was asked for exceeds the slice, the margin left aside. kv_room_mib: what is left
    for the KV cache, below 0 if not even the rest fits. kv_least_mib: of one sequence.
    """

    slice_mib: int
    margin_mib: int
    fixed_mib: int
    kv_room_mib: int
    kv_least_mib: int
    over_mib: int

    @property
    def text(self) -> str:
        """For people, with what to do."""
        least = self.fixed_mib + self.kv_least_mib + self.margin_mib
        return (
            f"{self.slice_mib} MiB do not hold it: {self.fixed_mib} MiB without KV cache, {self.kv_least_mib} MiB of "
            f"KV cache for one sequence and a margin of {self.margin_mib} MiB make {least} MiB; ask for at least that "
            f"much, or write a shorter context"
        )


@dataclass(frozen=True, slots=True)
class Budget:
    """How a slice is divided. kv_bytes, sequences: what is granted of what was asked, 0 for a model that is not known.

    over_mib: how much what was asked for exceeds the slice, the margin left aside; above 0 the KV cache was cut.
    """

    margin_mib: int
    kv_bytes: int = 0
    sequences: int = 0
    tokens: int = 0
    over_mib: int = 0
    cut: bool = False

    @property
    def notes(self) -> tuple[str, ...]:
        """What was cut, for people."""
        if not self.cut:
            return ()
        over = f", which is {self.over_mib} MiB over the slice" if self.over_mib else ""
        granted = f"the KV cache was cut to {self.kv_bytes // MIB_BYTES} MiB, {self.sequences} sequences"
        return (f"{granted}: what was asked for does not fit beside a margin of {self.margin_mib} MiB{over}",)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What keeps an engine inside its slice.

    args: of its command line, one text per argument. env: variables, name and value. notes: what that does not bound,
    and what was cut, for people. snippet: for its own file or program, where the engine has no flag. kv_bytes,
    sequences: what is granted, 0 where that is not set. refusal: the model does not fit; all else is then empty.
    """

    args: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    snippet: str = ""
    kv_bytes: int = 0
    sequences: int = 0
    refusal: Shortage | None = None


@dataclass(frozen=True, slots=True)
class ShareFlag:
    """The flag by which an engine is told a share of the memory that it sees.

    spellings: all that it takes, the one that we write first. default: what it takes unless told; None if that depends.
    env: a variable that says the same, which the flag overrides; empty if there is none. absolute: spellings of a flag
    that tells the KV cache in bytes, instead of the share.
    """

    spellings: tuple[str, ...]
    default: str | None
    env: str = ""
    absolute: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """As we write it."""
        return self.spellings[0]


def mib_up(amount_bytes: int) -> int:
    """Whole MiB that hold so many bytes."""
    return -(-amount_bytes // MIB_BYTES)


def margin_mib(slice_mib: int) -> int:
    """What of a slice is left to what engines do not count: max(512 MiB, 5 %), rounded up."""
    return max(MARGIN_LEAST_MIB, -(-slice_mib * MARGIN_SHARE.numerator // MARGIN_SHARE.denominator))


def share_text(usable_mib: int, seen_mib: int) -> str:
    """A share of what the engine sees, as it is written: never more than ``usable_mib`` of it, and at most 1.

    Raises ValueError unless both are above 0.
    """
    if usable_mib <= 0 or seen_mib <= 0:
        raise ValueError(f"{usable_mib} of {seen_mib} MiB is no share")
    digits = SHARE_DIGITS
    while not usable_mib * 10**digits // seen_mib:  # a slice of a few MiB: 0 would be no share
        digits += 2
    scale = 10**digits
    parts = min(usable_mib * scale // seen_mib, scale)
    return f"{parts // scale}.{parts % scale:0{digits}}"


def budget(slice_: SliceShape, needs: Needs | None, reserve_mib: int | None = None) -> Budget | Shortage:
    """Divide a slice: the margin first, then all but the KV cache, then what is left for that.

    reserve_mib: instead of the margin, for who has measured it. A KV cache that is cut keeps whole sequences.
    Source: cases C36 and C37.
    """
    margin = margin_mib(slice_.memory_mib) if reserve_mib is None else reserve_mib
    if needs is None:
        short = slice_.memory_mib <= margin
        return Shortage(slice_.memory_mib, margin, 0, slice_.memory_mib - margin, 1, 0) if short else Budget(margin)
    slice_bytes = slice_.memory_mib * MIB_BYTES
    over = mib_up(max(0, needs.fixed_bytes + needs.kv_bytes - slice_bytes))
    room = slice_bytes - margin * MIB_BYTES - needs.fixed_bytes
    least = -(-needs.kv_bytes // max(1, needs.max_sequences))
    if room < least:
        fixed = mib_up(needs.fixed_bytes)
        return Shortage(slice_.memory_mib, margin, fixed, room // MIB_BYTES, mib_up(least), over)
    if room >= needs.kv_bytes:
        return Budget(margin, needs.kv_bytes, needs.max_sequences, needs.tokens, over)
    sequences = room * needs.max_sequences // needs.kv_bytes
    return Budget(margin, room, sequences, room * needs.tokens // needs.kv_bytes, over, cut=True)
