"""What a dump does not say and the operator does: real sizes of workloads, and memory of cards, as typed.

A cluster that hands out whole cards tells nothing about slices; with ``team-a/resnet-*=4096:20`` replay shows what
slicing would save. Refuses to be lenient about amounts: read wrong, they promise what the cards cannot keep.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from cardwise.adapters import wire
from cardwise.adapters.quantity import parse_card_mib
from cardwise.errors import UserError
from cardwise.files import seen

_FORM = "write NAMESPACE/NAME=MEMORY:PERCENT, such as team-a/resnet-*=4096:20"


@dataclass(frozen=True, slots=True)
class SizeRule:
    """A slice for every pod whose "namespace/pod" or "namespace/service" matches a shell pattern.

    memory_mib, cores_pct: of each card the pod holds; at least 1 MiB, and 1-100 percent.
    """

    pattern: str
    memory_mib: int
    cores_pct: int

    def matches(self, *names: str) -> bool:
        """True if any of the names matches; case counts, as in Kubernetes."""
        return any(fnmatchcase(name, self.pattern) for name in names if name)


def first_match(rules: Iterable[SizeRule], *names: str) -> SizeRule | None:
    """The first rule that matches any of the names."""
    return next((rule for rule in rules if rule.matches(*names)), None)


def parse_size_rule(text: str) -> SizeRule:
    """Read a rule as users type it. Raises UserError with the value seen and the accepted forms."""
    pattern, equals, size = text.rpartition("=")
    memory, colon, cores = size.partition(":")
    if not (pattern and equals and colon):
        raise UserError(f"--slice {seen(text)}: {_FORM}")
    if "/" not in pattern and pattern[0] not in "*?[":
        raise UserError(f"--slice {seen(text)}: {seen(pattern)} names no namespace and matches no pod; {_FORM}")
    try:
        memory_mib = parse_card_mib(memory)
    except ValueError as exc:
        raise UserError(f"--slice {seen(text)}: {exc}") from exc
    if not re.fullmatch(r"[0-9]{1,3}", cores) or not 1 <= int(cores) <= 100:
        raise UserError(f"--slice {seen(text)}: {seen(cores)} is not a percentage; write a whole number, 1 to 100")
    return SizeRule(pattern, memory_mib, int(cores))


def parse_card_memory(texts: Iterable[str]) -> dict[str, int]:
    """MiB of one card by product, from ``PRODUCT=MIB`` each. Raises UserError with the value seen and the form."""
    card_memory: dict[str, int] = {}
    spelt: dict[str, str] = {}
    for text in texts:
        product, equals, memory = text.rpartition("=")
        if not (product and equals):
            raise UserError(f"card memory {seen(text)}: write PRODUCT=MIB, such as Tesla-T4=15360")
        before = spelt.setdefault(wire.model_token(product), text)
        if before is not text:
            raise UserError(f"card memory {seen(text)}: {seen(product)} is told twice, by {seen(before)} too; keep one")
        try:
            card_memory[product] = parse_card_mib(memory)
        except ValueError as exc:
            raise UserError(f"card memory {seen(text)}: {exc}") from exc
    return card_memory
