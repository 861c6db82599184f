"""Health: what the driver tells of a card → healthy, degraded or fenced, with strikes and a quiet time.

A fenced card takes no new slices; a degraded one is usable, and told. The driver's own verdict comes first (its
recovery action, field 230 of NVML, since R570), then Xids, failed rows, uncorrected ECC errors, temperature. A card
comes back by itself only after the driver asked for nothing during a quiet time; each fence within a day doubles that
time, and at the third the card waits for an operator: a card that flaps costs more than one that is gone.

Refuses to fence by temperature alone (the driver slows a hot card down by itself), to blame a card for one pod's
faults, and to act: who resets, reboots, or moves pods reads it from here.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from cardwise.core.card.facts import CardEvent, CardSample


class State(enum.Enum):
    """Whether a card takes slices."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    """Takes slices; something is told of it."""
    FENCED = "fenced"
    """Takes no new slices."""


class Action(enum.Enum):
    """What a fault asks for. From CORDON on the card is fenced, the later the harsher."""

    IGNORE = "ignore"
    APP = "app"
    """An application's own fault: counted per pod."""
    WARN = "warn"
    FOLLOW_DRIVER = "follow-driver"
    """The driver's recovery action decides, with the next sample."""
    DEGRADE = "degrade"
    CORDON = "cordon"
    """No new slices; running pods stay."""
    DRAIN = "drain"
    """Running pods may finish, then the card is reset."""
    RESET = "reset"
    """Services move now, then the card is reset."""
    REBOOT = "reboot"
    """Services move now, then the node is rebooted."""

    @property
    def fences(self) -> bool:
        """Whether the card takes no new slices."""
        return self in _HARSHNESS

    @property
    def moves_pods(self) -> bool:
        """Whether what runs on the card should move now."""
        return self in {Action.RESET, Action.REBOOT}


_HARSHNESS = {Action.CORDON: 1, Action.DRAIN: 2, Action.RESET: 3, Action.REBOOT: 4}


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
    LINK = "card-link"
    LOST = "card-lost"
    STUCK = "card-stuck"
    PROBE_FAILED = "card-probe-failed"
    PROBE_LATE = "card-probe-late"
    RECOVERED = "card-recovered"
    CLEARED = "card-cleared"


# ---------------------------------------------------------------- Xids


@dataclass(frozen=True, slots=True)
class XidRule:
    """What one Xid asks for, and who says so."""

    action: Action
    source: str


_BUCKETS: tuple[tuple[Action, str, str], ...] = (
    (
        Action.APP,
        "RESTART_APP",
        "8 11 13 25 31 32 39-41 60 68-72 75-77 80 82-86 88 89 94 96-105 126-135 139",
    ),
    (Action.IGNORE, "IGNORE", "37 38 43 44 63 66 67 92 93 106 107 121 137 141 152 153 157 160 161"),
    (Action.WARN, "WORKFLOW_XID_45, ignored if another Xid came with it", "45"),
    (Action.RESET, "RESET_GPU", "46 62 64 95 109 110 119 120 136 140 143 155 156 158"),
    (Action.RESET, "WORKFLOW_XID_48, with 63 or 64 drain and reset", "48"),
    (Action.REBOOT, "RESTART_BM", "79"),
    (Action.REBOOT, "CHECK_MECHANICALS", "54"),
    (Action.REBOOT, "CONTACT_SUPPORT", "142"),
    (Action.DEGRADE, "WORKFLOW_NVLINK_ERR, many of them not fatal", "74 144-150"),
    (Action.FOLLOW_DRIVER, "XID_154, the recovery action changed", "154"),
    (Action.FOLLOW_DRIVER, "UPDATE_SWFW, RESTART_VM, CHECK_UVM: not about the card alone", "78 151 159"),
    (Action.WARN, "no resolution given yet", "162-172"),
)


def _numbers(text: str) -> Iterator[int]:
    for part in text.split():
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


XIDS: Mapping[int, XidRule] = {
    xid: XidRule(action, f"NVIDIA's Xid catalogue of October 2025: {resolution}")
    for action, resolution, xids in _BUCKETS
    for xid in _numbers(xids)
}
"""What NVIDIA says of each Xid. Where NVIDIA's device plugin differs, it is not followed: it ignores 68 and 109, and
marks a card unhealthy for 63, 92 and 94, after which it runs on."""

_UNKNOWN = XidRule(Action.CORDON, "in no table: new work waits until someone has looked")
_MEANINGS: Mapping[int, str] = {
    13: "graphics engine exception",
    31: "memory page fault",
    43: "the card stopped processing a channel",
    45: "cleanup after an earlier fault or a kill",
    48: "double-bit ECC error",
    54: "auxiliary power is not connected",
    62: "micro-controller halt",
    63: "memory row remapped",
    64: "memory row could not be remapped",
    74: "NVLink error",
    79: "the card has fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "context switch timeout",
    119: "the card's system processor does not answer",
    120: "error of the card's system processor",
    140: "unrecovered ECC error",
    154: "the driver's recovery action changed",
    168: "less memory than before",
}
_REMAPPED, _DOUBLE_BIT, _CLEANUP, _CONTAINED = frozenset({63, 64}), 48, 45, 94


def rule_of(xid: int, overrides: Mapping[int, Action] | None = None) -> XidRule:
    """What an Xid asks for: the operator's word, else the table's, else new work waits (case C34)."""
    if overrides and xid in overrides:
        return XidRule(overrides[xid], "your configuration")
    return XIDS.get(xid, _UNKNOWN)


# ---------------------------------------------------------------- values


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """Numbers an operator may change; all times in seconds. xids: actions that differ from the table.

    quiet_s: clean time before a fenced card comes back, doubled with each strike within ``day_s``; ``most_strikes``: at
    so many it stays fenced. window_s, pod_faults, card_pods: so many application Xids within the window blame a pod,
    faults of so many pods the card. pair_s: Xids so close belong together. margin_c, slowed_s, cool_s: hot from so few
    degrees below slowdown or after so long a slowdown by heat, and no longer so long after the last sign.
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
    slowed_since_s: since when heat slows the card. xids: when each was seen last, within ``pair_s``.
    """

    uuid: str
    fence: Fence | None = None
    marks: tuple[Mark, ...] = ()
    struck_s: tuple[float, ...] = ()
    clean_since_s: float | None = None
    slowed_since_s: float | None = None
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
class _Finding:
    """What one observation says; key: findings of one key are told once while they last."""

    code: Code
    key: str
    what: str
    action: Action
    lasts_s: float = 0.0
    pods: tuple[str, ...] = ()


DEFAULTS = HealthPolicy()
Told = tuple[CardHealth, tuple[Notice, ...]]
_MOST_FAULTS = 64
"""Application faults remembered per card: a storm of them says no more than this many."""
_MOST_TEXT = 1000
"""Characters: an event takes 1024 bytes, and a driver's own words may be long."""

# ---------------------------------------------------------------- observe


def observe(
    health: CardHealth, now_s: float, seen: Seen, pods: Collection[str] = (), policy: HealthPolicy = DEFAULTS
) -> Told:
    """The card's health after one observation, and what to tell.

    pods: whose fault an event may be: those on the card, or fewer if more is known (of that MIG instance, of that
    process). Raises ValueError if the event or sample is of another card.
    """
    if isinstance(seen, CardEvent | CardSample) and seen.uuid != health.uuid:
        raise ValueError(f"an observation of {seen.uuid} was given to {health.uuid}")
    read, findings = _read(health, now_s, seen, pods, policy)
    changed, notices = _apply_all(read, now_s, findings, policy)
    if not isinstance(seen, CardSample):
        return changed, notices
    cooled, over = _cool(changed, now_s, _untold(seen))
    bad = any(finding.action.fences for finding in findings)
    back, recovered = _recover(cooled, now_s, clean=seen.recovery_action == 0 and not bad)
    return back, (*notices, *over, *recovered)


def clear(health: CardHealth, by: str) -> Told:
    """An operator, or a reset that was watched, says that the card is good: strikes and faults are forgotten."""
    fresh = CardHealth(health.uuid, ecc_uncorrected=health.ecc_uncorrected)
    if health.state is State.HEALTHY and not health.struck_s:
        return fresh, ()
    text = (
        f"{health.uuid} was cleared by {by}: it takes slices again, and its strikes ({health.strikes}) are forgotten."
    )
    return fresh, (Notice(Code.CLEARED, State.HEALTHY, text, warning=False),)


def _read(
    health: CardHealth, now_s: float, seen: Seen, pods: Collection[str], policy: HealthPolicy
) -> tuple[CardHealth, tuple[_Finding, ...]]:
    match seen:
        case CardEvent(xid=int(xid)):
            return _read_xid(health, now_s, xid, pods, policy)
        case CardEvent():
            return health, ()  # the driver's other events tell what the next sample tells with numbers
        case CardSample():
            return _read_sample(health, now_s, seen, policy)
        case Problem():
            return health, (_problem(seen),)
        case Probe():
            return _read_probe(health, seen, policy)


# ---------------------------------------------------------------- reading: an Xid


def _read_xid(
    health: CardHealth, now_s: float, xid: int, pods: Collection[str], policy: HealthPolicy
) -> tuple[CardHealth, tuple[_Finding, ...]]:
    recent = {each: at_s for each, at_s in health.xids if now_s - at_s <= policy.pair_s}
    action = _action_of(xid, recent.keys() - {xid}, policy)
    health = replace(health, xids=tuple({**recent, xid: now_s}.items()))
    if xid == _CONTAINED and action is Action.APP:
        return health, _contained(pods, policy)
    if action is Action.APP:
        return _read_app_fault(health, now_s, xid, pods, policy)
    code = Code.LINK if action is Action.DEGRADE else Code.XID
    if xid not in XIDS and xid not in policy.xids:
        code = Code.XID_UNKNOWN
    return health, (_Finding(code, f"xid-{xid}", _name(xid), action, policy.quiet_s),)


def _action_of(xid: int, recent: Collection[int], policy: HealthPolicy) -> Action:
    if xid not in policy.xids:
        together = {xid, *recent}
        if xid in {*_REMAPPED, _DOUBLE_BIT} and _DOUBLE_BIT in together and together & _REMAPPED:
            return Action.DRAIN
        if xid == _CLEANUP and recent:
            return Action.IGNORE
    return rule_of(xid, policy.xids).action


def _name(xid: int) -> str:
    meaning = _MEANINGS.get(xid, "" if xid in XIDS else "which is in no table")
    return f"Xid {xid}, {meaning}" if meaning else f"Xid {xid}"


def _read_app_fault(
    health: CardHealth, now_s: float, xid: int, pods: Collection[str], policy: HealthPolicy
) -> tuple[CardHealth, tuple[_Finding, ...]]:
    fault = AppFault(now_s, frozenset(pods))
    known = [each for each in health.app_faults if now_s - each.at_s <= policy.window_s]
    faults = (*known, fault)[-_MOST_FAULTS:] if pods else tuple(known)
    return replace(health, app_faults=faults), (_blame(fault, faults, xid, policy),)


def _contained(pods: Collection[str], policy: HealthPolicy) -> tuple[_Finding, ...]:
    """The card's fault and not the pod's, which has to start anew: counted against nobody."""
    due = "a memory error was contained; the card should be reset when it is next empty"
    return (
        _Finding(Code.XID_APP, "", _name(_CONTAINED), Action.APP, pods=tuple(sorted(pods))),
        _Finding(Code.ECC_CONTAINED, "contained", due, Action.DEGRADE, policy.day_s),
    )


def _blame(fault: AppFault, faults: Collection[AppFault], xid: int, policy: HealthPolicy) -> _Finding:
    """Whose fault: the card's if no fewer than ``card_pods`` pods explain all, one pod's if it is often alone in it."""
    who, minutes = tuple(sorted(fault.pods)), f"{policy.window_s / 60:g} min"
    if (culprits := _fewest(faults)) >= policy.card_pods:
        what = f"application Xids of at least {culprits} pods within {minutes}, the last {_name(xid)}"
        return _Finding(Code.FAULTS_OF_MANY, "many", what, Action.DRAIN, pods=who)
    alike = sum(each.pods == fault.pods for each in faults)
    if len(who) == 1 and alike >= policy.pod_faults:
        what = f"{alike} application Xids of {who[0]} within {minutes}, the last {_name(xid)}"
        return _Finding(Code.FAULTS_OF_POD, "", what, Action.WARN, pods=who)
    unclear = sum(len(each.pods) > 1 for each in faults)
    if len(who) > 1 and unclear >= policy.pod_faults:
        what = f"{unclear} application Xids within {minutes} that no single pod can be blamed for"
        return _Finding(Code.FAULTS_UNCLEAR, "unclear", what, Action.DEGRADE, policy.window_s, who)
    return _Finding(Code.XID_APP, "", _name(xid), Action.APP, pods=who)


def _fewest(faults: Collection[AppFault]) -> int:
    """So many pods at least took part: faults without a common suspect have different causes."""
    apart: set[str] = set()
    count = 0
    for fault in sorted(faults, key=lambda each: len(each.pods)):
        if apart.isdisjoint(fault.pods):
            apart |= fault.pods
            count += 1
    return count


# ---------------------------------------------------------------- reading: a sample


def _read_sample(
    health: CardHealth, now_s: float, sample: CardSample, policy: HealthPolicy
) -> tuple[CardHealth, tuple[_Finding, ...]]:
    slowed_since_s = _slowed_since(health, now_s, sample)
    findings = (
        *_verdict(sample, policy),
        *_rows(sample, policy),
        *_ecc(health, now_s, sample, policy),
        *_heat(sample, policy),
        *_slowed(slowed_since_s, now_s, policy),
    )
    ecc = health.ecc_uncorrected if sample.ecc_uncorrected is None else sample.ecc_uncorrected
    return replace(health, slowed_since_s=slowed_since_s, ecc_uncorrected=ecc), findings


_VERDICTS: Mapping[int, tuple[Action, str]] = {
    1: (Action.RESET, "a reset of the card"),
    2: (Action.REBOOT, "a reboot of the node"),
    3: (Action.DRAIN, "an end of all work across cards, after which it will say more"),
    4: (Action.DRAIN, "a reset once running work is done; until then the card has less capacity"),
    5: (Action.DEGRADE, "a recovery of the IMEX domain, which work across nodes needs"),
    6: (Action.RESET, "a reset of the card's PCIe bus"),
    7: (Action.REBOOT, "a reboot of the system"),
}
"""Source: NVIDIA, GPU memory error management, "Error recovery and response flags"; nvml.h for 5 to 7."""


def _verdict(sample: CardSample, policy: HealthPolicy) -> Iterator[_Finding]:
    said = sample.recovery_action
    if said:
        action, asks = _VERDICTS.get(said, (Action.CORDON, f"recovery action {said}, which is in no table"))
        yield _Finding(Code.DRIVER_VERDICT, f"driver-{said}", f"the driver asks for {asks}", action, policy.cool_s)


def _rows(sample: CardSample, policy: HealthPolicy) -> Iterator[_Finding]:
    if sample.rows_failed:
        what = "a memory row could not be remapped: no spare is left, and the card should be replaced"
        yield _Finding(Code.ROWS_FAILED, "rows-failed", what, Action.DRAIN)
    if sample.rows_pending:
        what = "a memory row is remapped at the next reset; the card works until then"
        yield _Finding(Code.ROWS_PENDING, "rows-pending", what, Action.DEGRADE, policy.cool_s)


def _ecc(health: CardHealth, now_s: float, sample: CardSample, policy: HealthPolicy) -> Iterator[_Finding]:
    """Uncorrected errors that nobody contained: fenced where the driver has no verdict, else told and left to it."""
    now, before = sample.ecc_uncorrected, health.ecc_uncorrected
    contained_s = dict(health.xids).get(_CONTAINED)
    contained = contained_s is not None and now_s - contained_s <= policy.pair_s
    if contained or not now or now <= (before or 0):
        return
    blind = sample.recovery_action is None and before is not None
    action = Action.RESET if blind else Action.DEGRADE
    what = f"{now - (before or 0)} new uncorrected ECC errors, {now} in all"
    yield _Finding(Code.ECC_UNCORRECTED, "ecc", what, action, policy.quiet_s)


def _heat(sample: CardSample, policy: HealthPolicy) -> Iterator[_Finding]:
    if sample.margin_c is not None and sample.margin_c <= policy.margin_c:
        what = f"{sample.margin_c} C below the temperature that slows it down"
        yield _Finding(Code.HOT, "hot", what, Action.DEGRADE, policy.cool_s)


_THERMAL_BITS = 0x20 | 0x40
"""Clock event reasons of NVML: software and hardware thermal slowdown."""


def _slowed_since(health: CardHealth, now_s: float, sample: CardSample) -> float | None:
    if sample.clock_event_bits is None:
        return health.slowed_since_s
    if not sample.clock_event_bits & _THERMAL_BITS:
        return None
    return now_s if health.slowed_since_s is None else health.slowed_since_s


def _slowed(since_s: float | None, now_s: float, policy: HealthPolicy) -> Iterator[_Finding]:
    if since_s is not None and now_s - since_s >= policy.slowed_s:
        what = f"slowed down by heat for {policy.slowed_s:g} s and more"
        yield _Finding(Code.SLOWED, "slowed", what, Action.DEGRADE, policy.cool_s)


def _untold(sample: CardSample) -> frozenset[Code]:
    """What this sample says nothing of: it neither starts nor ends."""
    told = {
        Code.DRIVER_VERDICT: sample.recovery_action,
        Code.HOT: sample.margin_c,
        Code.SLOWED: sample.clock_event_bits,
        Code.ROWS_PENDING: sample.rows_pending,
    }
    return frozenset(code for code, value in told.items() if value is None)


# ---------------------------------------------------------------- reading: problem, probe


def _problem(problem: Problem) -> _Finding:
    if problem.kind is ProblemKind.LOST:
        return _Finding(Code.LOST, "lost", f"the card is lost, as with Xid 79: {problem.text}", Action.REBOOT)
    return _Finding(Code.STUCK, "stuck", f"the card does not answer: {problem.text}", Action.CORDON)


def _read_probe(health: CardHealth, probe: Probe, policy: HealthPolicy) -> tuple[CardHealth, tuple[_Finding, ...]]:
    """An error fences at once. No answer in time degrades, for a busy card is slow, and fences the second time."""
    if probe.error:
        what = f"a program cannot use the card: {probe.error}"
        return health, (_Finding(Code.PROBE_FAILED, "probe", what, Action.CORDON),)
    if not probe.late:
        return replace(health, late_probes=0), ()
    late = health.late_probes + 1
    what = f"a program got no answer of the card within {probe.deadline_s:g} s"
    if late == 1:
        finding = _Finding(Code.PROBE_LATE, "late", what, Action.DEGRADE, policy.quiet_s)
    else:
        finding = _Finding(Code.PROBE_FAILED, "probe-late", f"{what}, twice and more in a row", Action.CORDON)
    return replace(health, late_probes=late), (finding,)


# ---------------------------------------------------------------- applying


def _apply_all(health: CardHealth, now_s: float, findings: Collection[_Finding], policy: HealthPolicy) -> Told:
    notices: list[Notice] = []
    for finding in findings:
        health, told = _apply(health, now_s, finding, policy)
        notices += told
    return health, tuple(notices)


def _apply(health: CardHealth, now_s: float, finding: _Finding, policy: HealthPolicy) -> Told:
    if finding.action.fences:
        if health.fence is None:
            return _fence(health, now_s, finding, policy)
        return _fence_more(health, health.fence, finding)
    if finding.action is Action.DEGRADE:
        return _mark(health, now_s, finding)
    if finding.action is Action.IGNORE:
        return health, ()
    return health, (_mention(health, finding),)


def _fence(health: CardHealth, now_s: float, finding: _Finding, policy: HealthPolicy) -> Told:
    struck_s = (*(at_s for at_s in health.struck_s if now_s - at_s < policy.day_s), now_s)
    quiet_s, held = policy.quiet_s * 2 ** (len(struck_s) - 1), len(struck_s) >= policy.most_strikes
    fence = Fence(finding.code, finding.what, finding.action, now_s, quiet_s, held, (finding.key,))
    fenced = replace(health, fence=fence, struck_s=struck_s, clean_since_s=None)
    text = f"{health.uuid} is fenced and takes no new slices: {finding.what}. {_NEXT[finding.action]} "
    return fenced, (_notice(fenced, finding, text + _return_of(fenced, fence)),)


def _fence_more(health: CardHealth, fence: Fence, finding: _Finding) -> Told:
    """The quiet time begins anew with every fault; a fault is told, and no further strike, if it is a new one."""
    noted = replace(health, clean_since_s=None)
    if finding.key in fence.keys:
        return noted, ()
    softer = finding.action is Action.DRAIN and _MEMORY_KEYS.issuperset((finding.key, *fence.keys))
    action = finding.action if softer or _HARSHNESS[finding.action] > _HARSHNESS[fence.action] else fence.action
    fence = replace(fence, action=action, keys=(*fence.keys, finding.key))
    noted = replace(noted, fence=fence)
    text = f"{health.uuid} stays fenced, now also for this: {finding.what}. {_NEXT[action]} "
    return noted, (_notice(noted, finding, text + _return_of(noted, fence)),)


_MEMORY_KEYS = {f"xid-{xid}" for xid in (_DOUBLE_BIT, *_REMAPPED)}
"""Together they are one fault, and a milder one than 48 or 64 alone."""

_NEXT: Mapping[Action, str] = {
    Action.CORDON: "Running pods stay; someone should look at the node's kernel log.",
    Action.DRAIN: "Running pods may finish, then the card needs a reset.",
    Action.RESET: "Its services should move now, then the card needs a reset.",
    Action.REBOOT: "Its services should move now, then the node needs a reboot, and the card a look if it comes again.",
}


def _return_of(health: CardHealth, fence: Fence) -> str:
    if fence.held:
        return f"This is fence {health.strikes} within a day: it stays fenced until an operator clears it."
    return (
        f"It takes slices again after {fence.quiet_s / 60:g} min without a fault in which the driver says that nothing "
        f"is to be done; where the driver cannot say so, an operator clears it."
    )


def _mark(health: CardHealth, now_s: float, finding: _Finding) -> Told:
    others = tuple(mark for mark in health.marks if mark.key != finding.key)
    marked = replace(health, marks=(*others, Mark(finding.code, finding.key, finding.what, now_s, finding.lasts_s)))
    if len(others) < len(health.marks):
        return marked, ()
    text = (
        f"{health.uuid}: {finding.what}. {_taking(marked)}; this is over {_span(finding.lasts_s)} after its last sign."
    )
    return marked, (_notice(marked, finding, text),)


def _taking(health: CardHealth) -> str:
    return "It stays fenced" if health.fence else "It still takes slices"


def _span(seconds: float) -> str:
    return f"{seconds:g} s" if seconds < 120 else f"{seconds / 60:g} min" if seconds < 7200 else f"{seconds / 3600:g} h"


def _mention(health: CardHealth, finding: _Finding) -> Notice:
    if finding.action is Action.FOLLOW_DRIVER:
        then = "The driver's recovery action decides what happens."
    elif finding.code is Code.FAULTS_OF_POD:
        then = "The pod is to blame and not the card, which stays as it is; look at the pod's log."
    elif finding.code is Code.XID_APP:
        then = _whose(finding.pods)
    else:
        then = f"{_taking(health)}."
    return _notice(health, finding, f"{health.uuid}: {finding.what}. {then}")


def _whose(pods: tuple[str, ...]) -> str:
    if not pods:
        return "An application is hit, but no pod is known on the card."
    shown = ", ".join(pods[:5]) + (f" and {len(pods) - 5} more" if len(pods) > 5 else "")
    return f"It hit {'one of ' if len(pods) > 1 else ''}{shown}, which has to start anew; the card stays as it is."


def _notice(health: CardHealth, finding: _Finding, text: str) -> Notice:
    shown = text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 4]} ..."
    return Notice(finding.code, health.state, shown, finding.pods)


# ---------------------------------------------------------------- getting better


def _cool(health: CardHealth, now_s: float, untold: Collection[Code]) -> Told:
    """End the marks that were not seen for long enough; what the sample does not tell of stays as it was."""
    marks = tuple(replace(mark, seen_s=now_s) if mark.code in untold else mark for mark in health.marks)
    over = [mark for mark in marks if now_s - mark.seen_s >= mark.lasts_s]
    cooled = replace(health, marks=tuple(mark for mark in marks if mark not in over))
    texts = (f"{health.uuid} is {cooled.state.value}; this is over: {mark.what}." for mark in over)
    notices = zip(over, texts, strict=True)
    return cooled, tuple(Notice(mark.code, cooled.state, text, warning=False) for mark, text in notices)


def _recover(health: CardHealth, now_s: float, *, clean: bool) -> Told:
    """End the fence if all samples were clean for its quiet time, the driver's verdict among them."""
    fence = health.fence
    if fence is None:
        return health, ()
    if not clean:
        return replace(health, clean_since_s=None), ()
    since_s = now_s if health.clean_since_s is None else health.clean_since_s
    if fence.held or now_s - since_s < fence.quiet_s:
        return replace(health, clean_since_s=since_s), ()
    back = replace(health, fence=None, clean_since_s=None, late_probes=0, app_faults=())
    text = (
        f"{health.uuid} is {back.state.value} and takes slices again: no fault for {_span(fence.quiet_s)}, and the "
        f"driver asks for nothing. It was fenced for this: {fence.what}. Strikes within a day: {back.strikes}."
    )
    return back, (Notice(Code.RECOVERED, back.state, text, warning=False),)
