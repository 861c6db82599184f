"""Bind is the authority: check on the picked node, hold, write, and where the answer is lost, read back.

One write puts node name and allocation on the pod, so nothing is ever half-bound. A hold is given back only when it is
known that the write did not happen. Refuses to bind unless this replica leads and has heard everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from cardwise.adapters import wire
from cardwise.adapters.allocations import decode, encode
from cardwise.adapters.claims import claim_of
from cardwise.adapters.extender_v1 import ExtenderBindingArgs
from cardwise.adapters.kube.events import about_pod, event, post
from cardwise.adapters.kube.feed import backoff_s
from cardwise.adapters.kube.port import Binding, ClusterPort
from cardwise.core.allocation import Allocation
from cardwise.core.claim import Claim
from cardwise.core.ledger import Ledger
from cardwise.core.reasons import Reason
from cardwise.errors import ClusterError, NotFoundError, UserError
from cardwise.scheduler.engines import NO_SHARE, granted_share, share_words
from cardwise.scheduler.extender import Extender

log = structlog.get_logger()

COMPONENT = "cardwise"
"""Who says what the scheduler's events say."""
READ_BACKS = 3
"""So many times a lost answer is read back at once; then the hold stays and is read back in the background."""


@dataclass(slots=True)
class Binder:
    """may_bind: None, or why this replica must not bind now."""

    port: ClusterPort
    ledger: Ledger
    extender: Extender
    may_bind: Callable[[], str | None]
    bound: int = 0
    refused: int = 0
    _unsettled: set[asyncio.Task[None]] = field(default_factory=set)
    _telling: set[asyncio.Task[None]] = field(default_factory=set)

    async def bind(self, args: ExtenderBindingArgs) -> str:
        """Bind a pod to the picked node. Returns an empty text, or why not."""
        error = await self._bind(args)
        if error:
            self.refused += 1
            log.info("binding refused", pod=f"{args.pod_namespace}/{args.pod_name}", node=args.node, why=error)
        else:
            self.bound += 1
            self.extender.forget(args.pod_uid)
        return error

    async def _bind(self, args: ExtenderBindingArgs) -> str:
        try:
            claim = self.extender.claim(args.pod_uid) or await self._read_claim(args)
        except (ClusterError, UserError) as exc:
            return str(exc)
        barred = self.may_bind()  # asked last before the hold: reading the pod may have taken a while
        if barred:
            return barred
        if args.pod_uid in self.ledger.under_way:  # kube-scheduler gave up waiting for the first answer
            return "an earlier binding of the pod is not settled yet, its cards stay held"
        allocation = self.ledger.hold(claim, args.node)
        if isinstance(allocation, Reason):
            return f"cardwise: {allocation.short} on {args.node}: {allocation.long}"
        return await self._write(args, claim, allocation)

    async def _read_claim(self, args: ExtenderBindingArgs) -> Claim:
        pod = await self.port.get_pod(args.pod_namespace, args.pod_name)
        if pod.metadata.uid != args.pod_uid:
            raise NotFoundError(f"pod {pod.name} is another one by now", retry=False)
        return claim_of(pod)

    async def _write(self, args: ExtenderBindingArgs, claim: Claim, allocation: Allocation) -> str:
        annotations, labels, share = {}, {}, self._share(claim, allocation)
        if claim.asks:
            annotations = {wire.ANNOTATION_ALLOC: encode(allocation)}
            if share is not None:
                annotations[wire.ANNOTATION_ENGINE_SHARE] = share
            labels = {wire.LABEL_BOUND: "true", wire.LABEL_LIMITS: "hard" if self.ledger.binds(allocation) else "soft"}
        binding = Binding(args.pod_namespace, args.pod_name, args.pod_uid, args.node, annotations, labels)
        settled = False
        try:
            await self.port.bind(binding)
            settled = True
        except ClusterError as exc:
            return await self._read_back(args, allocation, str(exc))
        finally:
            if not settled and args.pod_uid in self.ledger.under_way and not self._is_being_settled(args.pod_uid):
                self._settle_later(args, allocation)  # cancelled in the middle: what was written is not known
        self.ledger.confirm(claim.uid)
        if share is not None:
            self._tell_later(args, claim, share)
        return ""

    # ---------------------------------------------------------------- engines

    def _share(self, claim: Claim, allocation: Allocation) -> str | None:
        """What the pod's engine is told; None without one."""
        cards = {card.uuid: card for card in self.ledger.nodes[allocation.node].cards}
        return granted_share(claim, allocation, cards)

    def _tell_later(self, args: ExtenderBindingArgs, claim: Claim, share: str) -> None:
        """The pod's event, beside the next binding: nobody waits for it."""
        task = asyncio.get_running_loop().create_task(self._tell(args, claim, share))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell(self, args: ExtenderBindingArgs, claim: Claim, share: str) -> None:
        try:
            pod = await self.port.get_pod(args.pod_namespace, args.pod_name)
        except ClusterError as exc:
            log.warning("an event could not be written", pod=claim.name, why=str(exc))
            return
        before = pod.metadata.annotations.get(wire.ANNOTATION_ENGINE_BEFORE, "")
        text, warning = share_words(claim, share, before), share == NO_SHARE
        about, namespace = about_pod(args.pod_namespace, args.pod_name, args.pod_uid), args.pod_namespace
        told = event(about, "CardwiseEngineShare", text, component=COMPONENT, namespace=namespace, warning=warning)
        await post(self.port, told, pod=claim.name)

    # ---------------------------------------------------------------- answers that were lost

    async def _read_back(self, args: ExtenderBindingArgs, allocation: Allocation, why: str) -> str:
        for attempt in range(1, READ_BACKS + 1):
            written = await self._was_written(args, allocation)
            if written is not None:
                return "" if written else why
            await asyncio.sleep(backoff_s(attempt))
        self._settle_later(args, allocation)
        return f"{why}; whether the pod is bound is not known yet, its cards stay held"

    async def _was_written(self, args: ExtenderBindingArgs, allocation: Allocation) -> bool | None:
        """Whether our binding stands; settles the hold accordingly. None if that cannot be known now."""
        try:
            pod = await self.port.get_pod(args.pod_namespace, args.pod_name)
        except NotFoundError:
            self.ledger.release(args.pod_uid)
            return False
        except ClusterError:
            return None
        ours = _is_ours(pod.metadata.annotations.get(wire.ANNOTATION_ALLOC), allocation)
        if pod.metadata.uid == args.pod_uid and pod.spec.node_name == args.node and ours:
            self.ledger.confirm(args.pod_uid)
            return True
        self.ledger.release(args.pod_uid)
        return False

    def _settle_later(self, args: ExtenderBindingArgs, allocation: Allocation) -> None:
        task = asyncio.get_running_loop().create_task(self._settle(args, allocation), name=args.pod_uid)
        self._unsettled.add(task)
        task.add_done_callback(self._unsettled.discard)

    def _is_being_settled(self, uid: str) -> bool:
        return any(task.get_name() == uid for task in self._unsettled)

    async def _settle(self, args: ExtenderBindingArgs, allocation: Allocation) -> None:
        attempt = 0
        while args.pod_uid in self.ledger.under_way and await self._was_written(args, allocation) is None:
            attempt += 1
            await asyncio.sleep(backoff_s(attempt))


def _is_ours(text: str | None, allocation: Allocation) -> bool:
    """True if the annotation is the very allocation that we wrote. Pods without an ask carry none."""
    if text is None:
        return not allocation.containers
    try:
        return decode(text) == allocation
    except ValueError:
        return False
