"""Divides an idle card anew with MIG, on an operator's word: what would be done, whether it may be, and doing it.

Nothing in use is touched: neither an instance in which a process runs nor one that the agent handed to a container;
both are asked again right before each instance goes. Refuses to switch MIG on or off: that empties the card.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from cardwise.adapters.journal import Row
from cardwise.adapters.nvml.driver import Driver
from cardwise.core.card.facts import CardFacts, MigInstance, ProcessUse
from cardwise.core.card.mig import Creation, Held, Plan, Profile, Refusal, plan
from cardwise.errors import CardError


@dataclass(frozen=True, slots=True)
class Layout:
    """A card with MIG on, now. halves: instances of which only one half was made; they run nothing."""

    card: CardFacts
    profiles: tuple[Profile, ...]
    held: tuple[Held, ...]
    halves: tuple[MigInstance, ...]


@dataclass(frozen=True, slots=True)
class Steps:
    """What is to be done, in this order: clear halves, destroy, create. Empty: the card is as it was wanted."""

    clear: tuple[MigInstance, ...]
    destroy: tuple[MigInstance, ...]
    create: tuple[Creation, ...]

    @property
    def told(self) -> list[str]:
        """A line for each."""
        return [
            *(f"clear    {each.profile} at {each.start}, half-made" for each in self.clear),
            *(f"destroy  {each.profile} at {each.start} ({each.uuid})" for each in self.destroy),
            *(f"create   {each.profile} at {each.start}" for each in self.create),
        ]


@dataclass(frozen=True, slots=True)
class Dividing:
    """rows: what the agent handed over, read anew at each call."""

    driver: Driver
    rows: Callable[[], Iterable[Row]]

    def layout(self, card: CardFacts) -> Layout:
        """The card as it is now. Raises CardError, and what ``rows`` raises."""
        mig, instances = self.driver.mig(card.uuid)
        card = replace(card, mig=mig, instances=instances)
        processes, rows = self.driver.sample(card.uuid).processes, list(self.rows())
        held = tuple(_held(each, processes, rows) for each in instances if each.uuid)
        halves = tuple(each for each in instances if not each.uuid)
        return Layout(card, self.driver.mig_profiles(card.uuid) if mig else (), held, halves)

    def steps(self, card: CardFacts, names: Sequence[str]) -> Steps | Refusal:
        """How the card comes to have exactly these profiles, or why not. Raises CardError."""
        layout = self.layout(card)
        refusal = _refusal(layout, names)
        if refusal is not None:
            return refusal
        profiles = {each.name: each for each in layout.profiles}
        found = plan(layout.held, [profiles[name] for name in names], layout.profiles)
        if not isinstance(found, Plan):
            return found
        gone = tuple(held.instance for held in layout.held if held.instance.uuid in found.destroy)
        return Steps(layout.halves, gone, found.create)

    def apply(self, card: CardFacts, steps: Steps) -> Iterator[str]:
        """Do it, and tell each step when it is done. Raises CardError at the first that fails: those before stay."""
        told = iter(steps.told)
        for half in steps.clear:
            self.driver.destroy_instance(card.uuid, half)
            yield next(told)
        for instance in steps.destroy:
            self._check_idle(card, instance)
            self.driver.destroy_instance(card.uuid, instance)
            yield next(told)
        for each in steps.create:
            made = self.driver.create_instance(card.uuid, each.profile_id, each.start)
            yield f"{next(told)} ({made.uuid})"

    def _check_idle(self, card: CardFacts, instance: MigInstance) -> None:
        for held in self.layout(card).held:
            if held.instance.uuid == instance.uuid and held.in_use:
                raise CardError(card.uuid, f"{held.told} came into use meanwhile")


def _held(instance: MigInstance, processes: Sequence[ProcessUse] | None, rows: Iterable[Row]) -> Held:
    by = [
        f"{row.namespace}/{row.pod}, container {row.container}"
        for row in rows
        if any(grant.uuid == instance.uuid for grant in row.grants)
    ]
    if processes is None:
        by.append("processes that the driver does not tell")
    else:
        by += [f"process {use.pid}" for use in processes if use.gpu_instance == instance.gpu_instance]
    return Held(instance, bool(by), tuple(by))


def _refusal(layout: Layout, names: Sequence[str]) -> Refusal | None:
    """What stands against dividing the card at all, or against these names."""
    if layout.card.mig is None:
        return Refusal(f"{layout.card.model} has no MIG")
    if not layout.card.mig:
        how = f"nvidia-smi -i {layout.card.index} -mig 1, then restart the agent"
        return Refusal(f"MIG is off; switching it on empties the card, so it is yours to do: {how}")
    shared = Counter(held.instance.gpu_instance for held in layout.held)
    if any(count > 1 for count in shared.values()):
        return Refusal("instances of this card are divided once more; take that back first: nvidia-smi mig -dci")
    known = [each.name for each in layout.profiles]
    unknown = [name for name in names if name not in known]
    if unknown:
        return Refusal(f"the card has no profile {', '.join(unknown)}; it has {', '.join(known)}")
    return None
