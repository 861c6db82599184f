"""What a diagnosis looks at, as one file: a list as kubectl writes it, and beside its items what Prometheus answered.

``cardwise doctor --save`` writes it; ``doctor --dump`` reads it, and a plain ``kubectl get ... -o json`` as well, and
so do ``explain --dump`` and ``replay --dump``. A capture may leave the cluster it is of: variables, command lines and
annotations that no check reads are left out of it, and private keys are never read.
Refuses to interpret: ``doctor/facts.py`` gives meaning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from cardwise.adapters import wire
from cardwise.adapters.kube_objects import Moment
from cardwise.adapters.kubectl_list import read_listing
from cardwise.adapters.symptoms import (
    KINDS,
    EnvVar,
    Lease,
    Symptom,
    ToldContainer,
    ToldNode,
    ToldPod,
)
from cardwise.core.capacity.engines import SHARE_FLAGS
from cardwise.errors import InputError
from cardwise.files import decode_json, read_text, seen

WANT = (
    "what `cardwise doctor --save FILE` writes, or `kubectl get nodes,pods,events,leases,endpointslices,"
    "mutatingwebhookconfigurations,runtimeclasses -A -o json`"
)
KEPT_ENV = re.compile(r"(CUDA_|NVIDIA_|CARDWISE_|OMP_NUM_THREADS|TOKENIZERS_PARALLELISM)")
"""Variables that checks read. All others are the user's secrets for what we know."""
KEPT_FLAGS = frozenset(
    {
        *(each for flag in SHARE_FLAGS.values() for each in (*flag.spellings, *flag.absolute)),
        "--max-num-seqs",
        "--max-model-len",
        "--api-server-count",
    }
)
"""Flags whose values are kept; of others the name alone, of plain arguments nothing."""
KEPT_DOMAINS = (*wire.ANNOTATION_DOMAINS, "kueue.x-k8s.io")
LEFT_OUT = "…"
_ObjectT = TypeVar("_ObjectT", bound=Symptom)


class Series(msgspec.Struct, frozen=True):
    """One series of a query's answer. values: float64 [T] on the capture's grid; NaN, in a file null, where unknown.

    An array from the start: a thousand nodes have ten million numbers, each of which would be an object.
    """

    labels: dict[str, str]
    values: np.ndarray[Any, np.dtype[np.float64]]


class Measured(msgspec.Struct, frozen=True, rename="camel"):
    """What Prometheus answered. results: by the name of a query. begin, step_s: the grid of all series."""

    begin: Moment
    step_s: float
    results: dict[str, list[Series]]
    gaps: list[str] = []


class Tried(msgspec.Struct, frozen=True, rename="camel"):
    """What became of a pod with an ask that was created for trial. Neither: the webhook was not asked about it.

    namespace: in which. translated: its ask was, so the webhook answers. refused: because the webhook could not be
    called, with the API server's words; empty if it was not.
    """

    namespace: str
    translated: bool = False
    refused: str = ""


class Beside(msgspec.Struct, frozen=True, rename="camel"):
    """What stands beside the items. taken: by the API server's clock; clock_off_s: this machine's less that, at least.

    tried: None where no pod was created for trial, as in a dump by kubectl.
    """

    taken: Moment | None = None
    clock_off_s: float | None = None
    measured: Measured | None = None
    tried: Tried | None = None
    gaps: list[str] = []


@dataclass(frozen=True, slots=True, repr=False)
class Capture:
    """Everything that was looked at. kinds: which were, for an empty list and one nobody asked for are not the same."""

    items: tuple[Symptom, ...]
    beside: Beside = field(default_factory=Beside)
    kinds: frozenset[str] = frozenset()
    _by_kind: dict[type, tuple[Any, ...]] = field(default_factory=dict, compare=False, repr=False)

    def __repr__(self) -> str:
        """How much it is: asyncio.run writes out what it returns, and that would take longer than the rest."""
        return f"<Capture of {len(self.items)} objects>"

    def of(self, kind: type[_ObjectT]) -> tuple[_ObjectT, ...]:
        """The items of one kind. Worked out once: checks ask for each of a thousand nodes."""
        if kind not in self._by_kind:
            self._by_kind[kind] = tuple(item for item in self.items if type(item) is kind)
        found: tuple[_ObjectT, ...] = self._by_kind[kind]
        return found

    @property
    def nodes(self) -> tuple[ToldNode, ...]:
        """Nodes."""
        return self.of(ToldNode)

    @property
    def pods(self) -> tuple[ToldPod, ...]:
        """Pods, those that ended too."""
        return self.of(ToldPod)

    @property
    def taken(self) -> datetime | None:
        """When it was taken: as it says itself, else the latest time that can be trusted.

        What the API server wrote itself, and the median of what nodes say: one whose clock is a year ahead would make
        every certificate expired and every agent silent.
        """
        if self.beside.taken is not None:
            return self.beside.taken
        made = [item.metadata.creation_timestamp for item in self.items]
        told = sorted(at for item in self.items if (at := _said(item)) is not None)
        return max([*filter(None, made), *told[len(told) // 2 : len(told) // 2 + 1]], default=None)


def _said(item: Symptom) -> datetime | None:
    """When a node or an agent wrote last, by its own clock."""
    if isinstance(item, Lease):
        return item.spec.renew_time
    if isinstance(item, ToldNode):
        return max(filter(None, (each.last_heartbeat_time for each in item.status.conditions)), default=None)
    return None


class _Top(msgspec.Struct):
    items: list[msgspec.Raw]
    cardwise: Beside = Beside()


class _Kind(msgspec.Struct):
    kind: str = ""
    type: str = ""


def read_capture(path: Path) -> Capture:
    """Read a capture, or a plain list. Raises InputError that names what is wrong and what to give."""
    read_listing(path)  # says what is wrong with nodes and pods, with the line
    try:
        top = _TOP.decode(read_text(path, WANT).encode())
    except (msgspec.DecodeError, RecursionError) as exc:
        raise InputError(str(path), f"{exc}; give {WANT}") from exc
    _check_grid(path, top.cardwise.measured)
    items, kinds = list[Symptom](), set[str]()
    for raw in top.items:
        told = msgspec.json.decode(raw, type=_Kind)
        kinds.add(told.kind)
        if told.kind in KINDS and (told.kind != "Secret" or told.type == "kubernetes.io/tls"):
            items.append(_decode(path, bytes(raw), told.kind))
    return Capture(tuple(items), top.cardwise, frozenset(kinds))


def _check_grid(path: Path, measured: Measured | None) -> None:
    if measured is None:
        return
    sizes = {name: {len(each.values) for each in found} for name, found in measured.results.items()}
    if len(set().union(*sizes.values())) > 1:
        told = ", ".join(f"{name} {sorted(each)}" for name, each in sizes.items())
        raise InputError(str(path), f"cardwise.measured: series of different lengths ({seen(told)}); give {WANT}")


def _array(_kind: type, values: Any) -> Any:  # noqa: ANN401 - msgspec's hook for what it does not know
    return np.array(values, np.float64)


def _list(values: Any) -> Any:  # noqa: ANN401 - as above
    return [None if value != value else value for value in values.tolist()]  # noqa: PLR0124 - NaN


_TOP = msgspec.json.Decoder(_Top, dec_hook=_array)


def _decode(path: Path, raw: bytes, kind: str) -> Symptom:
    try:
        return decode_json(raw, KINDS[kind])
    except msgspec.DecodeError as exc:
        raise InputError(
            str(path), f"a {kind}: {exc}: {seen(raw[:200].decode(errors='replace'))}; give {WANT}"
        ) from exc


def encode_capture(capture: Capture) -> str:
    """The text of a capture, without what could be a secret."""
    names = {kind: name for name, kind in KINDS.items()}
    items = ",\n".join(_encoded(names[type(item)], _redacted(item)) for item in capture.items)
    beside = msgspec.json.encode(capture.beside, enc_hook=_list).decode()
    return f'{{"kind":"List","apiVersion":"v1","cardwise":{beside},"items":[\n{items}\n]}}\n'


def _encoded(kind: str, item: Symptom) -> str:
    return f'{{"kind":"{kind}",{msgspec.json.encode(item).decode()[1:]}'


def _redacted(item: Symptom) -> Symptom:
    notes = {
        key: value for key, value in item.metadata.annotations.items() if key.partition("/")[0].endswith(KEPT_DOMAINS)
    }
    changed = {"metadata": msgspec.structs.replace(item.metadata, annotations=notes)}
    if isinstance(item, ToldPod):
        spec = msgspec.structs.replace(
            item.spec,
            containers=[_quiet(each) for each in item.spec.containers],
            init_containers=[_quiet(each) for each in item.spec.init_containers],
        )
        return msgspec.structs.replace(item, spec=spec, **changed)
    return msgspec.structs.replace(item, **changed)


def _quiet(container: ToldContainer) -> ToldContainer:
    env = [EnvVar(each.name, each.value if KEPT_ENV.match(each.name) else "") for each in container.env]
    return msgspec.structs.replace(
        container, env=env, args=_quiet_args(container.args), command=_quiet_command(container.command)
    )


def _quiet_command(command: list[str]) -> list[str]:
    """The program's own name tells the engine; what follows is arguments."""
    return [*command[:1], *_quiet_args(command[1:])]


def _quiet_args(args: list[str]) -> list[str]:
    kept, before = list[str](), ""
    for arg in args:
        flag, equals, _ = arg.partition("=")
        if before in KEPT_FLAGS or flag in KEPT_FLAGS:
            kept.append(arg)
        else:
            kept.append(f"{flag}={LEFT_OUT}" if equals and flag.startswith("-") else arg if arg.startswith("-") else "")
        before = arg
    return [each or LEFT_OUT for each in kept]
