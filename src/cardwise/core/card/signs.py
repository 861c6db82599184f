"""Signs: what one observation of a card says, as findings. Whether it changes anything is judged in ``health``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from cardwise.core.card.facts import CardEvent, CardSample
from cardwise.core.card.health_record import (
    AppFault,
    CardHealth,
    Code,
    Finding,
    HealthPolicy,
    Probe,
    Problem,
    ProblemKind,
    Seen,
)
from cardwise.core.card.xids import CONTAINED, XIDS, Action, action_of, name_of

_MOST_FAULTS = 64
"""Application faults remembered per card: a storm of them says no more than this many."""


def read(
    health: CardHealth, now_s: float, seen: Seen, pods: Collection[str], policy: HealthPolicy
) -> tuple[CardHealth, tuple[Finding, ...]]:
    """What it says, and the card's health with what was read noted; nothing follows from it yet."""
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


# ---------------------------------------------------------------- an Xid


def _read_xid(
    health: CardHealth, now_s: float, xid: int, pods: Collection[str], policy: HealthPolicy
) -> tuple[CardHealth, tuple[Finding, ...]]:
    recent = {each: at_s for each, at_s in health.xids if now_s - at_s <= policy.pair_s}
    action = action_of(xid, recent.keys() - {xid}, policy.xids)
    health = replace(health, xids=tuple({**recent, xid: now_s}.items()))
    if xid == CONTAINED and action is Action.APP:
        return health, _contained(pods, policy)
    if action is Action.APP:
        return _read_app_fault(health, now_s, xid, pods, policy)
    code = Code.LINK if action is Action.DEGRADE else Code.XID
    if xid not in XIDS and xid not in policy.xids:
        code = Code.XID_UNKNOWN
    return health, (Finding(code, f"xid-{xid}", name_of(xid), action, policy.quiet_s),)


def _read_app_fault(
    health: CardHealth, now_s: float, xid: int, pods: Collection[str], policy: HealthPolicy
) -> tuple[CardHealth, tuple[Finding, ...]]:
    fault = AppFault(now_s, frozenset(pods))
    known = [each for each in health.app_faults if now_s - each.at_s <= policy.window_s]
    faults = (*known, fault)[-_MOST_FAULTS:] if pods else tuple(known)
    return replace(health, app_faults=faults), (_blame(fault, faults, xid, policy),)


def _contained(pods: Collection[str], policy: HealthPolicy) -> tuple[Finding, ...]:
    """The card's fault and not the pod's, which has to start anew: counted against nobody."""
    due = "a memory error was contained; the card should be reset when it is next empty"
    return (
        Finding(Code.XID_APP, "", name_of(CONTAINED), Action.APP, pods=tuple(sorted(pods))),
        Finding(Code.ECC_CONTAINED, "contained", due, Action.DEGRADE, policy.day_s),
    )


def _blame(fault: AppFault, faults: Collection[AppFault], xid: int, policy: HealthPolicy) -> Finding:
    """Whose fault: the card's if no fewer than ``card_pods`` pods explain all, one pod's if it is often alone in it."""
    who, minutes = tuple(sorted(fault.pods)), f"{policy.window_s / 60:g} min"
    if (culprits := _fewest(faults)) >= policy.card_pods:
        what = f"application Xids of at least {culprits} pods within {minutes}, the last {name_of(xid)}"
        return Finding(Code.FAULTS_OF_MANY, "many", what, Action.DRAIN, pods=who)
    alike = sum(each.pods == fault.pods for each in faults)
    if len(who) == 1 and alike >= policy.pod_faults:
        what = f"{alike} application Xids of {who[0]} within {minutes}, the last {name_of(xid)}"
        return Finding(Code.FAULTS_OF_POD, "", what, Action.WARN, pods=who)
    unclear = sum(len(each.pods) > 1 for each in faults)
    if len(who) > 1 and unclear >= policy.pod_faults:
        what = f"{unclear} application Xids within {minutes} that no single pod can be blamed for"
        return Finding(Code.FAULTS_UNCLEAR, "unclear", what, Action.DEGRADE, policy.window_s, who)
    return Finding(Code.XID_APP, "", name_of(xid), Action.APP, pods=who)


def _fewest(faults: Collection[AppFault]) -> int:
    """So many pods at least took part: faults without a common suspect have different causes."""
    apart: set[str] = set()
    count = 0
    for fault in sorted(faults, key=lambda each: len(each.pods)):
        if apart.isdisjoint(fault.pods):
            apart |= fault.pods
            count += 1
    return count


# ---------------------------------------------------------------- a sample


def _read_sample(
    health: CardHealth, now_s: float, sample: CardSample, policy: HealthPolicy
) -> tuple[CardHealth, tuple[Finding, ...]]:
    slowed_since_s = _since(health.slowed_since_s, now_s, sample, _THERMAL_BITS)
    braked_since_s = _since(health.braked_since_s, now_s, sample, _BRAKE_BIT)
    findings = (
        *_verdict(sample, policy),
        *_rows(sample, policy),
        *_ecc(health, now_s, sample, policy),
        *_heat(sample, policy),
        *_slowed(slowed_since_s, now_s, policy),
        *_braked(braked_since_s, now_s, policy),
    )
    ecc = health.ecc_uncorrected if sample.ecc_uncorrected is None else sample.ecc_uncorrected
    noted = replace(health, slowed_since_s=slowed_since_s, braked_since_s=braked_since_s, ecc_uncorrected=ecc)
    return noted, findings


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


def _verdict(sample: CardSample, policy: HealthPolicy) -> Iterator[Finding]:
    said = sample.recovery_action
    if said:
        action, asks = _VERDICTS.get(said, (Action.CORDON, f"recovery action {said}, which is in no table"))
        yield Finding(Code.DRIVER_VERDICT, f"driver-{said}", f"the driver asks for {asks}", action, policy.cool_s)


def _rows(sample: CardSample, policy: HealthPolicy) -> Iterator[Finding]:
    if sample.rows_failed:
        what = "a memory row could not be remapped: no spare is left, and the card should be replaced"
        yield Finding(Code.ROWS_FAILED, "rows-failed", what, Action.DRAIN)
    if sample.rows_pending:
        what = "a memory row is remapped at the next reset; the card works until then"
        yield Finding(Code.ROWS_PENDING, "rows-pending", what, Action.DEGRADE, policy.cool_s)


def _ecc(health: CardHealth, now_s: float, sample: CardSample, policy: HealthPolicy) -> Iterator[Finding]:
    """Uncorrected errors that nobody contained: fenced where the driver has no verdict, else told and left to it."""
    now, before = sample.ecc_uncorrected, health.ecc_uncorrected
    contained_s = dict(health.xids).get(CONTAINED)
    contained = contained_s is not None and now_s - contained_s <= policy.pair_s
    if contained or not now or now <= (before or 0):
        return
    blind = sample.recovery_action is None and before is not None
    action = Action.RESET if blind else Action.DEGRADE
    what = f"{now - (before or 0)} new uncorrected ECC errors, {now} in all"
    yield Finding(Code.ECC_UNCORRECTED, "ecc", what, action, policy.quiet_s)


def _heat(sample: CardSample, policy: HealthPolicy) -> Iterator[Finding]:
    if sample.margin_c is not None and sample.margin_c <= policy.margin_c:
        what = f"{sample.margin_c} C below the temperature that slows it down"
        yield Finding(Code.HOT, "hot", what, Action.DEGRADE, policy.cool_s)


_THERMAL_BITS = 0x20 | 0x40
"""Clock event reasons of NVML: software and hardware thermal slowdown."""
_BRAKE_BIT = 0x80
"""Another: the power brake, which the machine's power supply pulls. A card at its own limit (0x4) is just busy."""


def _since(before_s: float | None, now_s: float, sample: CardSample, bits: int) -> float | None:
    """Since when the clocks have been held down for one of these reasons."""
    if sample.clock_event_bits is None:
        return before_s
    if not sample.clock_event_bits & bits:
        return None
    return now_s if before_s is None else before_s


def _slowed(since_s: float | None, now_s: float, policy: HealthPolicy) -> Iterator[Finding]:
    if since_s is not None and now_s - since_s >= policy.slowed_s:
        what = f"slowed down by heat for {policy.slowed_s:g} s and more"
        yield Finding(Code.SLOWED, "slowed", what, Action.DEGRADE, policy.cool_s)


def _braked(since_s: float | None, now_s: float, policy: HealthPolicy) -> Iterator[Finding]:
    if since_s is not None and now_s - since_s >= policy.slowed_s:
        what = f"slowed down for want of power for {policy.slowed_s:g} s and more: the machine's power supply brakes it"
        yield Finding(Code.BRAKED, "braked", what, Action.DEGRADE, policy.cool_s)


def untold(sample: CardSample) -> frozenset[Code]:
    """What this sample says nothing of: it neither starts nor ends."""
    told = {
        Code.DRIVER_VERDICT: sample.recovery_action,
        Code.HOT: sample.margin_c,
        Code.SLOWED: sample.clock_event_bits,
        Code.BRAKED: sample.clock_event_bits,
        Code.ROWS_PENDING: sample.rows_pending,
    }
    return frozenset(code for code, value in told.items() if value is None)


# ---------------------------------------------------------------- a problem, a probe


def _problem(problem: Problem) -> Finding:
    if problem.kind is ProblemKind.LOST:
        return Finding(Code.LOST, "lost", f"the card is lost, as with Xid 79: {problem.text}", Action.REBOOT)
    return Finding(Code.STUCK, "stuck", f"the card does not answer: {problem.text}", Action.CORDON)


def _read_probe(health: CardHealth, probe: Probe, policy: HealthPolicy) -> tuple[CardHealth, tuple[Finding, ...]]:
    """An error fences at once. No answer in time degrades, for a busy card is slow, and fences the second time."""
    if probe.error:
        what = f"a program cannot use the card: {probe.error}"
        return health, (Finding(Code.PROBE_FAILED, "probe", what, Action.CORDON),)
    if not probe.late:
        return replace(health, late_probes=0), ()
    late = health.late_probes + 1
    what = f"a program got no answer of the card within {probe.deadline_s:g} s"
    if late == 1:
        finding = Finding(Code.PROBE_LATE, "late", what, Action.DEGRADE, policy.quiet_s)
    else:
        finding = Finding(Code.PROBE_FAILED, "probe-late", f"{what}, twice and more in a row", Action.CORDON)
    return replace(health, late_probes=late), (finding,)
