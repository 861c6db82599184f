"""A card's health in values: what may be observed, what is remembered, what is told, and numbers to change."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from cardwise.core.card.facts import CardEvent, CardSample
from cardwise.core.card.xids import Action


class State(enum.Enum):
    """Whether a card takes slices."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    """Takes slices; something is told of it."""
    FENCED = "fenced"
    """Takes no new slices."""


class Code(enum.Enum):
    """What happened to a card's health; stable, for tools match on it."""

    DRIVER_VERDICT = "card-driver-verdict"
    XID = "card-xid"
    XID_UNKNOWN = "card-xid-unknown"
    XID_APP = "card-xid-app"
    FAULTS_OF_POD = "card-faults-of-pod"
    FAULTS_OF_MANY = "card-faults-of-many"
    FAULTS_UNCLEAR = "card-faults-unclear"
    ECC_CONTAINED = "card-ecc-contained"
    ECC_UNCORRECTED = "card-ecc-uncorrected"
    ROWS_FAILED = "card-rows-failed"
    ROWS_PENDING = "card-rows-pending"
    HOT = "card-hot"
    SLOWED = "card-slowed"
    BRAKED = "card-braked"
    LINK = "card-link"
    LOST = "card-lost"
    STUCK = "card-stuck"
    PROBE_FAILED = "card-probe-failed"
    PROBE_LATE = "card-probe-late"
    RECOVERED = "card-recovered"
    CLEARED = "card-cleared"


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """Numbers an operator may change; all times in seconds. xids: actions that differ from the table.

    quiet_s: clean time before a fenced card comes back, doubled with each strike within ``day_s``; ``most_strikes``: at
    so many it stays fenced. window_s, pod_faults, card_pods: so many application Xids within the window blame a pod,
    faults of so many pods the card. pair_s: Xids so close belong together. margin_c, slowed_s, cool_s: hot from so few
    degrees below slowdown or after so long a slowdown by heat, and no longer so long after the last sign; braked alike.
    """

    quiet_s: float = 300.0
    day_s: float = 86400.0
    most_strikes: int = 3
    window_s: float = 600.0
    pod_faults: int = 3
    card_pods: int = 3
    pair_s: float = 60.0
    margin_c: int = 5
    slowed_s: float = 60.0
    cool_s: float = 60.0
    xids: Mapping[int, Action] = field(default_factory=dict)


class ProblemKind(enum.Enum):
    """What reading a card can run into."""

    LOST = "lost"
    """The driver says that the card is lost: what Xid 79 says, by another way."""
    STUCK = "stuck"
    """A call did not come back by its deadline."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A card could not be read. text: what was called, and what came of it."""

    kind: ProblemKind
    text: str


@dataclass(frozen=True, slots=True)
class Probe:
    """A try to use the card as a container would. took_s: None if no answer came by the deadline; error: "" if well."""

    deadline_s: float
    took_s: float | None
    error: str = ""

    @property
    def late(self) -> bool:
        """No answer in time, which a busy card may cause."""
        return self.took_s is None or self.took_s > self.deadline_s


Seen = CardEvent | CardSample | Problem | Probe


@dataclass(frozen=True, slots=True)
class Notice:
    """A change, or a fault, in words for an event. pods: whom it is about; warning: whether anyone should look."""

    code: Code
    state: State
    text: str
    pods: tuple[str, ...] = ()
    warning: bool = True

    @property
    def reason(self) -> str:
        """The reason of a Kubernetes event: ``CardXidUnknown``."""
        return "".join(part.capitalize() for part in self.code.value.split("-"))


@dataclass(frozen=True, slots=True)
class Mark:
    """Why a card is degraded: since when unseen, and how long unseen until it is over."""

    code: Code
    key: str
    what: str
    seen_s: float
    lasts_s: float


@dataclass(frozen=True, slots=True)
class Fence:
    """Why a card takes no new slices. held: until an operator clears it; keys: the faults told so far."""

    code: Code
    what: str
    action: Action
    since_s: float
    quiet_s: float
    held: bool
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AppFault:
    """One application Xid; pods: who may have caused it. The driver does not say who did."""

    at_s: float
    pods: frozenset[str]


@dataclass(frozen=True, slots=True)
class CardHealth:
    """What is remembered of one card. Times are monotonic seconds.

    struck_s: when it was fenced, within a day of the last time. clean_since_s: since when all samples are clean.
    slowed_since_s, braked_since_s: since when heat, or a want of power, slows the card. xids: when each was seen last,
    within ``pair_s``.
    """

    uuid: str
    fence: Fence | None = None
    marks: tuple[Mark, ...] = ()
    struck_s: tuple[float, ...] = ()
    clean_since_s: float | None = None
    slowed_since_s: float | None = None
    braked_since_s: float | None = None
    ecc_uncorrected: int | None = None
    late_probes: int = 0
    app_faults: tuple[AppFault, ...] = ()
    xids: tuple[tuple[int, float], ...] = ()

    @property
    def state(self) -> State:
        """Fenced, degraded or healthy."""
        if self.fence is not None:
            return State.FENCED
        return State.DEGRADED if self.marks else State.HEALTHY

    @property
    def strikes(self) -> int:
        """Fences within a day, counted at the last one; time alone takes none away."""
        return len(self.struck_s)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one observation says; key: findings of one key are told once while they last."""

    code: Code
    key: str
    what: str
    action: Action
    lasts_s: float = 0.0
    pods: tuple[str, ...] = ()


DEFAULTS = HealthPolicy()
