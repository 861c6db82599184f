"""An inference engine that is told its share of the card: at admission by a name, at the binding by a number.

Engines take a share of the *whole card* unless told, and which card that is nobody knows at admission. So the webhook
writes a variable where the share belongs, the scheduler writes its value with the Binding, for it knows the card, and
the kubelet puts the one in place of the other when it starts the container (docs/decisions/0007). A share that is not
written leaves an empty text, at which engines refuse to start. Refuses to read what goes through a shell.
"""

from __future__ import annotations

import enum
import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from cardwise.adapters import wire
from cardwise.adapters.faults import Faults
from cardwise.core.allocation import Allocation
from cardwise.core.capacity.engines import MIB_BYTES, SHARE_FLAGS, ShareFlag, Shortage, SliceShape, margin_mib, share_of
from cardwise.core.claim import Claim, ContainerAsk, Stage
from cardwise.core.inventory import CardSpec
from cardwise.core.ledger import Ledger
from cardwise.core.request import Shape
from cardwise.files import seen
from cardwise.units import MILLI_PER_CARD

OURS = f"$({wire.ENV_ENGINE_SHARE})"
"""What stands for the share in a container's command line; the kubelet expands it. Source: Kubernetes' API reference,
``command`` and ``args`` of a container: ``$(VAR_NAME)`` is expanded using the container's environment."""
SHARE_PATH = f"metadata.annotations['{wire.ANNOTATION_ENGINE_SHARE}']"
SHARE_ENV: dict[str, Any] = {"name": wire.ENV_ENGINE_SHARE, "valueFrom": {"fieldRef": {"fieldPath": SHARE_PATH}}}
NO_SHARE = "0"
"""Of a slice that leaves an engine nothing: no engine starts with it, and says so."""
SHELLS = frozenset(
    {"sh", "bash", "rbash", "dash", "ash", "zsh", "ksh", "mksh", "csh", "tcsh", "fish", "pwsh", "busybox"}
)
PARTS = ("command", "args")
_SHARE = re.compile(r"\+?(?:[0-9]{1,99}(?:\.[0-9]{0,99})?|\.[0-9]{1,99})(?:[eE][-+]?[0-9]{1,3})?")
"""A number of a size that can be counted with: ``1e999999999`` is one too, of a gigabyte."""
_AMOUNT = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,9})?)([kKmMgGtT]?)(?:i?[bB])?")
LONGEST_BEFORE = 200
"""Characters of what an engine was told before."""


class EnginePolicy(enum.Enum):
    """What becomes of a share that may take more than the slice, or of none."""

    REWRITE = "rewrite"
    """It is replaced; where there is none, added."""
    ADD = "add"
    """It is left, with a warning; where there is none, added."""
    DENY = "deny"
    """The pod is denied, with what to write."""


def no_cards(_shape: Shape) -> Collection[int]:
    """Where no card is known: then no share that a user wrote can be shown to hold."""
    return ()


@dataclass(frozen=True, slots=True)
class Rules:
    """What admission goes by. policy: of pods that name none. memories_mib: of the cards that a shape may land on."""

    policy: EnginePolicy = EnginePolicy.REWRITE
    memories_mib: Callable[[Shape], Collection[int]] = no_cards


def memories_of(ledger: Ledger) -> Callable[[Shape], Collection[int]]:
    """MiB of the cards that the ledger knows and a shape may land on; a card that joins later is not among them."""
    return lambda shape: {
        card.memory_mib for node in ledger.nodes.values() for card in node.cards if shape.takes(card.model)
    }


@dataclass(slots=True)
class Told:
    """What admission makes of an engine's container.

    parts: ``command`` and ``args`` as they shall be, those that change. before: what was replaced. warnings: for whom
    who created the pod.
    """

    container: str = ""
    parts: dict[str, list[str]] = field(default_factory=dict)
    before: str = ""
    warnings: list[str] = field(default_factory=list)


# ---------------------------------------------------------------- at admission


def tell_engine(
    claim: Claim, annotations: Mapping[str, str], containers: Sequence[Mapping[str, Any]], rules: Rules, faults: Faults
) -> Told | None:
    """Have the pod's engine told its share; None for a pod that names no engine, or asks for no card.

    containers: those of ``spec.containers``. What is wrong is added to ``faults``.
    """
    policy = _policy(annotations, rules, faults)
    asks = [ask for ask in claim.asks if ask.stage is Stage.APP]
    if not claim.engine or policy is None or not claim.asks:
        return None
    if len(asks) != 1:
        names = ", ".join(ask.container for ask in asks) or "none"
        told = f"is for a pod in which one container asks for cards, here {names}; remove it, and write the share as"
        faults.add(f"annotation {wire.ANNOTATION_ENGINE}: {told} docs/reference/engines.md has it")
        return None
    if annotations.get(wire.ANNOTATION_PROCESSES, "1") != "1":
        told = f"goes without {wire.ANNOTATION_PROCESSES}: a share is of one process on a card; remove one of them"
        faults.add(f"annotation {wire.ANNOTATION_ENGINE}: {told}")
        return None
    raw = next(each for each in containers if each.get("name") == asks[0].container)
    return _Admission(claim.engine, policy, asks[0], rules, faults).tell(raw)


def _policy(annotations: Mapping[str, str], rules: Rules, faults: Faults) -> EnginePolicy | None:
    text = annotations.get(key := wire.ANNOTATION_ENGINE_POLICY)
    if text is None:
        return rules.policy
    known = [each.value for each in EnginePolicy]
    if text not in known:
        faults.add(f"annotation {key}: {seen(text)} is none of {', '.join(known)}")
        return None
    if wire.ANNOTATION_ENGINE not in annotations:
        faults.add(f"annotation {key}: says nothing without {wire.ANNOTATION_ENGINE}; write that too, or remove it")
        return None
    return EnginePolicy(text)


@dataclass(frozen=True, slots=True)
class _Found:
    """A share on a command line: in which part, where, how many arguments it takes, and its value."""

    part: str
    at: int
    length: int
    value: str


@dataclass(frozen=True, slots=True)
class _Admission:
    """One container of one pod."""

    engine: str
    policy: EnginePolicy
    ask: ContainerAsk
    rules: Rules
    faults: Faults

    def tell(self, raw: Mapping[str, Any]) -> Told:
        told = Told(self.ask.container)
        shape, flag = self.ask.shape, SHARE_FLAGS.get(self.engine)
        if shape.memory_mib and shape.memory_mib <= margin_mib(shape.memory_mib):
            self._fault(
                f"{shape.memory_mib} MiB leave engine {self.engine} nothing: {margin_mib(shape.memory_mib)} MiB go to "
                "its CUDA context; ask for more"
            )
        elif flag is None:
            self._warn(told, f"engine {self.engine} takes no share on its command line; see docs/reference/engines.md")
        elif not shape.whole:
            self._tell_share(told, raw, flag)
        return told

    def _tell_share(self, told: Told, raw: Mapping[str, Any], flag: ShareFlag) -> None:
        lines = {part: raw.get(part) or [] for part in PARTS}
        if not all(isinstance(each, str) for line in lines.values() for each in line):
            self._fault("command and args are lists of texts; put each in quotes")
        elif goes_through_shell([*lines["command"], *lines["args"]]):
            self._tell_shell(told, lines, flag)
        else:
            self._tell_absolute(told, lines, flag)
            found = [each for part, line in lines.items() for each in _found(part, line, flag.spellings)]
            if found:
                self._tell_found(told, lines, found, flag)
            else:
                self._tell_none(told, raw, lines, flag)

    def _tell_found(self, told: Told, lines: Mapping[str, list[str]], found: Sequence[_Found], flag: ShareFlag) -> None:
        """Shares on the command line: they stay if all of them hold, whichever counts."""
        sizes = self._sizes()
        if all(each.value == OURS or _holds(each.value, sizes) for each in found):
            return None
        was = f"{flag.name} {found[-1].value}".strip()
        if self.policy is EnginePolicy.DENY:
            return self._fault(self._too_much(was, found[-1].value, flag))
        if self.policy is EnginePolicy.ADD:
            return self._warn(told, f"{was} was left, and may take more than the slice: {self._write(flag)}")
        told.before = was[:LONGEST_BEFORE]
        told.parts = _replaced(lines, found, flag)
        return self._warn(told, f"{was} may take more than the slice; it became {flag.name}={OURS}")

    def _tell_absolute(self, told: Told, lines: Mapping[str, list[str]], flag: ShareFlag) -> None:
        """What is told in bytes counts instead of the share, and is too much by itself if the slice is less."""
        room_mib = self.ask.shape.memory_mib - margin_mib(self.ask.shape.memory_mib)
        for each in (found for part, line in lines.items() for found in _found(part, line, flag.absolute)):
            amount = _bytes(each.value)
            if not self.ask.shape.memory_mib or (amount is not None and amount <= room_mib * MIB_BYTES):
                continue
            write = f"write less than {room_mib * MIB_BYTES}, or leave it out"
            why = f"{flag.absolute[0]} {each.value} is not known to fit into the {room_mib} MiB of the slice; {write}"
            if self.policy is EnginePolicy.ADD:
                self._warn(told, why)
            else:
                self._fault(why)

    def _tell_shell(self, told: Told, lines: Mapping[str, list[str]], flag: ShareFlag) -> None:
        """A shell's command line is not read; who wrote our variable there knows what it is for."""
        if any(wire.ENV_ENGINE_SHARE in each for line in lines.values() for each in line):
            return None
        why = "its command goes through a shell, which cardwise does not read"
        write = f"write {flag.name} ${wire.ENV_ENGINE_SHARE} there, or command and args as lists"
        if self.policy is EnginePolicy.ADD:
            return self._warn(told, f"{why}: {write}")
        return self._fault(f"{why}; {write}")

    def _tell_none(self, told: Told, raw: Mapping[str, Any], lines: Mapping[str, list[str]], flag: ShareFlag) -> None:
        """No share on the command line: then the engine's own default holds, or what a variable says."""
        env = [str(each.get("value") or "") for each in raw.get("env") or () if each.get("name") == flag.env]
        value = env[-1] if env else flag.default
        if value is not None and (value == OURS or _holds(value, self._sizes())):
            return None
        if self.policy is EnginePolicy.DENY:
            return self._fault(self._too_much(f"{flag.env} {value}" if env else f"no {flag.name}", value, flag))
        if env and self.policy is EnginePolicy.ADD:
            return self._warn(told, f"{flag.env} {value} was left, and may take more: {self._write(flag)}")
        if not any(lines.values()):  # args would stand in place of the image's own
            why = f"neither command nor args are told, so {flag.name} cannot be added to what the image says"
            if self.policy is EnginePolicy.ADD:
                return self._warn(told, f"{why}; write args, or {flag.env or 'the share'} yourself")
            return self._fault(f"{why}; write the image's command line as args")
        if env:
            told.before = f"{flag.env} {value}"[:LONGEST_BEFORE]
        told.parts = {"args": [*lines["args"], f"{flag.name}={OURS}"]}
        return self._warn(told, f"{flag.name}={OURS} was added: engine {self.engine} would take more than the slice")

    # ---------------------------------------------------------------- what a share takes

    def _sizes(self) -> dict[int, Fraction]:
        """The most that may be told, by the memory of the cards that the pod may land on."""
        shape = self.ask.shape
        most: dict[int, Fraction] = {}
        for card_mib in self.rules.memories_mib(shape):
            asked = shape.memory_mib or card_mib * shape.memory_milli // MILLI_PER_CARD
            if asked <= card_mib:
                most[card_mib] = Fraction(_share(self.engine, SliceShape(asked, card_mib, 0, card_mib)))
        return most

    def _too_much(self, was: str, value: str | None, flag: ShareFlag) -> str:
        sizes, share = self._sizes(), _fraction(value or "")
        broken = [each for each in sizes if share is None or share > sizes[each]]
        if share is None or not broken:
            return f"{was} is not known to hold the slice; {self._write(flag)}"
        card_mib = max(broken)
        taken, room = int(share * card_mib), int(sizes[card_mib] * card_mib)
        return f"{was} takes {taken} of {card_mib} MiB, the slice has room for {room}; {self._write(flag)}"

    def _write(self, flag: ShareFlag) -> str:
        return f"write {flag.name}={OURS}, which becomes the slice's share of its card"

    def _fault(self, text: str) -> None:
        self.faults.add(f"container {self.ask.container}: {text}")

    def _warn(self, told: Told, text: str) -> None:
        told.warnings.append(f"container {self.ask.container}: {text}")


def goes_through_shell(argv: Sequence[str]) -> bool:
    """Whether a shell stands in a command line: before it others may, as tini or env, and what follows is not read."""
    return any(posixpath.basename(each) in SHELLS for each in argv)


def _found(part: str, line: Sequence[str], spellings: Collection[str]) -> Iterator[_Found]:
    """Each use of a flag in one part, as ``--flag=value`` or ``--flag value``. One without a value has an empty one."""
    for i, each in enumerate(line):
        name, equals, value = each.partition("=")
        if name.replace("_", "-") not in spellings:  # engines take either, and both in one name
            continue
        if equals:
            yield _Found(part, i, 1, value)
        else:
            yield _Found(part, i, len(line[i : i + 2]), "".join(line[i + 1 : i + 2]))


def _replaced(lines: Mapping[str, list[str]], found: Sequence[_Found], flag: ShareFlag) -> dict[str, list[str]]:
    """The parts that change: the first share becomes ours, the others go, for some engines take it once only."""
    changed = {part: list(lines[part]) for part in {each.part for each in found}}
    for each in reversed(found):
        changed[each.part][each.at : each.at + each.length] = [f"{flag.name}={OURS}"] if each is found[0] else []
    return changed


def _holds(value: str, sizes: Mapping[int, Fraction]) -> bool:
    """Whether a share leaves the slice its margin on every card that the pod may land on, and there is one."""
    share = _fraction(value)
    return share is not None and bool(sizes) and all(share <= most for most in sizes.values())


def _fraction(text: str) -> Fraction | None:
    """A share as engines read it; None for what is none, such as a variable."""
    return Fraction(text) if _SHARE.fullmatch(text) else None


def _bytes(text: str) -> int | None:
    """An amount as vLLM reads it, such as 4294967296, 4G or 4.5GiB; decimal units are taken for the larger binary ones.

    None for what is none. Source: human_readable_int in vllm/engine/arg_utils.py.
    """
    told = _AMOUNT.fullmatch(text)
    return None if told is None else int(Fraction(told[1]) * 1024 ** " kmgt".index(told[2].lower() or " "))


# ---------------------------------------------------------------- at the binding


def granted_share(claim: Claim, allocation: Allocation, cards: Mapping[str, CardSpec]) -> str | None:
    """The share to be written with a Binding: the least of the container's cards; None for a pod without an engine.

    cards: those of the node, by UUID. The card is taken to be seen whole, or its MIG instance: an engine that sees less
    takes less.
    """
    ask = next((each for each in claim.asks if each.stage is Stage.APP), None)
    if not claim.engine or ask is None:
        return None
    told = [
        _share(claim.engine, SliceShape(each.memory_mib, card.memory_mib, each.compute_pct, card.memory_mib))
        for each in dict(allocation.containers).get(ask.container, ())
        if (card := cards.get(each.uuid)) is not None
    ]
    return min(told, key=Fraction, default=NO_SHARE)


def _share(engine: str, slice_: SliceShape) -> str:
    share = share_of(engine, slice_)
    return NO_SHARE if isinstance(share, Shortage) else share


def share_words(claim: Claim, share: str, before: str) -> str:
    """The event of a Binding: what the engine is told, and instead of what."""
    flag = SHARE_FLAGS.get(claim.engine)
    name = flag.name if flag else wire.ENV_ENGINE_SHARE
    if share == NO_SHARE:
        return f"engine {claim.engine} gets {name} {share}: its slice leaves it nothing beside its CUDA context"
    instead = f", instead of {before}" if before else ""
    return f"engine {claim.engine} gets {name} {share} of what it sees of its card{instead}"
