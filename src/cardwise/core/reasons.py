"""Every "no" of the placement core, once: a stable code, a short text, the numbers it carries, and what to do.

A refusal is a value. The short form goes into pod events and must stay readable when a hundred nodes are summed up;
the long form is what ``explain`` prints for one node or card. Codes never change their meaning: tools match on them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Code(enum.Enum):
    """Why a node or a card was refused. The value is the stable code that events and JSON carry."""

    NODE_CORDONED = "node-cordoned"
    NODE_FENCED = "node-fenced"
    NODE_CPU = "node-cpu"
    NODE_MEMORY = "node-memory"
    NODE_CARDS = "node-cards"
    NODE_TOGETHER = "node-together"
    NODE_UNKNOWN = "node-unknown"
    POD_BOUND = "pod-bound"
    CARD_UNHEALTHY = "card-unhealthy"
    CARD_MODEL = "card-model"
    CARD_ISOLATION = "card-isolation"
    CARD_LIMITS = "card-limits"
    CARD_EVICTED = "card-evicted"
    CARD_TENANT = "card-tenant"
    CARD_WORKLOAD = "card-workload"
    CARD_IN_USE = "card-in-use"
    CARD_INSTANCE = "card-instance"
    CARD_MEMORY = "card-memory"
    CARD_COMPUTE = "card-compute"
    PREEMPT_RESTS = "preempt-rests"
    PREEMPT_ROOM = "preempt-room"
    PREEMPT_BRAKED = "preempt-braked"
    PREEMPT_NO_HELP = "preempt-no-help"
    PREEMPT_NOBODY = "preempt-nobody"
    PREEMPT_FRUITLESS = "preempt-fruitless"
    PREEMPT_CHANGED = "preempt-changed"
    PREEMPT_BUDGET = "preempt-budget"
    MOVE_NOBODY = "move-nobody"
    MOVE_CHANGED = "move-changed"
    MOVE_FRUITLESS = "move-fruitless"


@dataclass(frozen=True, slots=True)
class Wording:
    """Texts of one code; ``{...}`` fields are filled from the reason's numbers.

    lending: follows ``long`` where the reason says how much may be lent.
    """

    short: str
    long: str
    advice: str
    lending: str = ""


WORDINGS: dict[Code, Wording] = {
    Code.NODE_CORDONED: Wording(
        "node is cordoned",
        "the node is marked unschedulable",
        "uncordon it (kubectl uncordon NODE) once it is fit for work",
    ),
    Code.NODE_FENCED: Wording(
        "node fenced",
        "what the node reports cannot be relied on: its agent is silent, or its pods hold what it does not have",
        "see the node's condition CardwiseConsistent; once that is mended the fence goes by itself",
    ),
    Code.NODE_CPU: Wording(
        "too little CPU",
        "{free} of {total} milli CPU are free, the pod asks for {asked}",
        "lower the pod's CPU request or move CPU-only pods off GPU nodes: free cards without CPU are stranded",
    ),
    Code.NODE_MEMORY: Wording(
        "too little host memory",
        "{free} of {total} MiB of host memory are free, the pod asks for {asked}",
        "lower the pod's memory request or move CPU-only pods off GPU nodes",
    ),
    Code.NODE_CARDS: Wording(
        "too few cards",
        "{fitting} of the node's {total} cards would do, the pod asks for {asked}",
        "ask for fewer cards, or look at the reasons per card",
    ),
    Code.NODE_TOGETHER: Wording(
        "containers do not fit together",
        "each container of the pod would fit alone, but not all beside each other",
        "ask for less in one of the containers, or split the pod",
    ),
    Code.NODE_UNKNOWN: Wording(
        "no cards reported",
        "no agent reports cards of {node}",
        "see that the cardwise agent runs on the node: kubectl get pods -n cardwise-system -o wide",
    ),
    Code.POD_BOUND: Wording(
        "already bound",
        "the pod is bound to {node} already",
        "nothing: a late or repeated request",
    ),
    Code.CARD_UNHEALTHY: Wording(
        "card unhealthy",
        "the card is fenced as unhealthy",
        "see the node's events for the fault; the card returns by itself after quiet time or a reset",
    ),
    Code.CARD_MODEL: Wording(
        "other card model",
        "the card's model is {model}, the pod allows {allowed}",
        "allow more models; a pod that names none takes any",
    ),
    Code.CARD_ISOLATION: Wording(
        "other isolation mode",
        "the card is shared by {mode}, the pod accepts only {asked}",
        "accept the card's mode or have a card of the node re-configured",
    ),
    Code.CARD_LIMITS: Wording(
        "limits do not bind",
        "the pod demands hard limits, and the card's hold only as long as its slices do not try to take more",
        "accept soft limits (cardwise.dev/limits: soft), or give the node what makes them bind: driver R615, or MIG",
    ),
    Code.CARD_EVICTED: Wording(
        "had to give memory back there",
        "a pod of {service} had to give this card's memory back, and its next ones wait a while before they come here",
        "nothing: it ends by itself; other cards take the pod meanwhile. If it happens often, lend less",
    ),
    Code.CARD_TENANT: Wording(
        "card of another tenant",
        "the card holds slices of another tenant and one side asks to be alone",
        "drop the exclusive rule of the pod, or of its neighbours",
    ),
    Code.CARD_WORKLOAD: Wording(
        "training and inference apart",
        "the card holds {held} slices and the pod is {asked}; both sides must allow to mix",
        "allow mixing on both sides if a lower P99 guarantee is acceptable",
    ),
    Code.CARD_IN_USE: Wording(
        "card in use",
        "the card holds {slices} slices, the pod asks for a whole card",
        "ask for a slice (MiB and percent) if the workload does not need all of a card",
    ),
    Code.CARD_INSTANCE: Wording(
        "MIG instance in use",
        "the MIG instance is in use, and one pod at a time has it",
        "wait for an instance, or divide idle cards anew (cardwise mig on their node)",
    ),
    Code.CARD_MEMORY: Wording(
        "too little card memory",
        "{free} of {total} MiB are free on the card, the pod asks for {asked} on one card",
        "ask for fewer MiB; memory on other cards of the node does not add up",
        "; {lent} MiB more may be lent",
    ),
    Code.CARD_COMPUTE: Wording(
        "too little card compute",
        "{free_pct} % of the card's compute is free, the pod asks for {asked_pct} %",
        "ask for a smaller percentage",
    ),
    Code.PREEMPT_RESTS: Wording(
        "its workload was evicted lately",
        "its workload was evicted itself and asks for nobody's eviction for another {left_s} s",
        "nothing: it ends by itself; the pause grows with each eviction, so that workloads do not chase each other",
    ),
    Code.PREEMPT_ROOM: Wording(
        "it fits without evictions",
        "{node} takes the pod as it is, as far as cards, labels and taints go",
        "see the pod's FailedScheduling event: another rule of kube-scheduler keeps it off, or it is about to be bound",
    ),
    Code.PREEMPT_BRAKED: Wording(
        "evictions are braked",
        "pods that could go are left alone for now: {told}",
        "wait; or raise the limits in the controller's [preemption] settings if the cluster can bear more evictions",
    ),
    Code.PREEMPT_NO_HELP: Wording(
        "evictions would not help",
        "on {tried} nodes the pod would not fit even with all gone that may go; left alone: {told}",
        "ask for less, or add cards; pods that may go are best-effort, of lower priority and not starting",
    ),
    Code.PREEMPT_NOBODY: Wording(
        "nobody may be evicted for it",
        "no pod may go for this one: {told}",
        "give the pod a PriorityClass above that of best-effort pods, or wait",
    ),
    Code.PREEMPT_FRUITLESS: Wording(
        "evictions did not help",
        "what {node} kept for the pod until {kept_s} s were over it did not take; it may ask again after {pause_s} s",
        "see the pod's FailedScheduling event: a rule that is not about cards keeps it off the node",
    ),
    Code.PREEMPT_CHANGED: Wording(
        "the cluster changed before anybody was evicted",
        "on {node} the evictions that were decided would no longer make room, or are no longer allowed",
        "nothing: it is decided anew",
    ),
    Code.PREEMPT_BUDGET: Wording(
        "a PodDisruptionBudget forbids the eviction",
        "{victim} may not be evicted now: {told}",
        "wait until more of its replicas are ready, or loosen the budget",
    ),
    Code.MOVE_NOBODY: Wording(
        "no replicas can make room for it",
        "on {tried} nodes it would not fit even with all replicas elsewhere that may move; those that stay: {told}",
        "ask for less, or add cards; what moves is a ready replica of a Deployment, of no higher priority",
    ),
    Code.MOVE_CHANGED: Wording(
        "the cluster changed before anybody moved",
        "on {node} the moves that were decided would no longer make room, or are no longer allowed",
        "nothing: it is decided anew",
    ),
    Code.MOVE_FRUITLESS: Wording(
        "moves did not help",
        "replicas that were to move off {node} did not, or what that kept the pod did not take; it may ask again after "
        "{pause_s} s",
        "see the events of the replicas and the pod's FailedScheduling event: a rule that is not about cards keeps the "
        "pod off the node, or a successor off its own",
    ),
}


@dataclass(frozen=True, slots=True)
class Reason:
    """One "no": its code and the numbers seen when it was said."""

    code: Code
    numbers: dict[str, int | float | str] = field(default_factory=dict)

    @property
    def short(self) -> str:
        """A few words for pod events: without numbers, so that equal reasons add up."""
        return WORDINGS[self.code].short

    @property
    def long(self) -> str:
        """A sentence with the numbers."""
        wording = WORDINGS[self.code]
        return (wording.long + (wording.lending if "lent" in self.numbers else "")).format(**self.numbers)

    @property
    def advice(self) -> str:
        """What the reader can do about it."""
        return WORDINGS[self.code].advice
