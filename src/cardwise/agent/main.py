"""The agent program. Only wires.

0. wait until no other agent runs on this node; tell from now on what is waited for;
1. open the driver, read what cards there are, choose how each is shared;
2. follow this node's pods; restore what a crash left; have the MPS daemon;
3. serve the device plugin and register with the kubelet;
4. sample cards, judge their health, publish, sweep, answer Prometheus.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from cardwise.adapters import wire
from cardwise.adapters.cdi import SlotFiles, ToolkitFiles
from cardwise.adapters.cgroup import is_version_2
from cardwise.adapters.journal import Journal
from cardwise.adapters.kube.port import NodePort
from cardwise.adapters.kubelet.pod_resources import PodResources
from cardwise.adapters.mps.daemon import ControlDaemon, probe
from cardwise.adapters.mps.v2 import MpsV2
from cardwise.adapters.mps.v3 import MpsV3
from cardwise.adapters.mps.values import MpsControl, MpsSupport
from cardwise.adapters.node_cards import encode_lending
from cardwise.adapters.nvml.driver import Driver
from cardwise.agent.cards import Cards
from cardwise.agent.checks import driver_findings, node_findings
from cardwise.agent.driver_calls import alone
from cardwise.agent.evicting import Evicting
from cardwise.agent.inventory import Inventory, allocation_of
from cardwise.agent.isolating import Isolating, choose_steps
from cardwise.agent.marking import Marking, MemorySampler
from cardwise.agent.metrics import Metrics
from cardwise.agent.models import ModelFolders
from cardwise.agent.mps_daemon import Supervisor
from cardwise.agent.node_lock import NodeLock
from cardwise.agent.owners import Owners
from cardwise.agent.plugin import News, SlotPlugin
from cardwise.agent.preparing import Preparing
from cardwise.agent.publishing import Publishing
from cardwise.agent.reclaiming import OFF, Reclaiming
from cardwise.agent.refreshing import Refreshing
from cardwise.agent.registering import Registering
from cardwise.agent.rivals import tell_of_rivals
from cardwise.agent.server import Pages
from cardwise.agent.server import serving as serving_http
from cardwise.agent.settings import ALL_PCT, Settings
from cardwise.agent.sweeping import Sweeping
from cardwise.agent.telling import Teller, to_nobody
from cardwise.agent.using import Using
from cardwise.agent.watching import NodePods
from cardwise.agent.wellness import Wellness
from cardwise.core.card.ending import EndPolicy
from cardwise.core.card.facts import NodeFacts
from cardwise.core.card.handover import Slots
from cardwise.core.card.isolation import Mps, Offer, Standing
from cardwise.core.card.watermark import FIRST_LENT_SHARE, MarkPolicy
from cardwise.core.request import Isolation
from cardwise.errors import ClusterError, DriverError, UserError
from cardwise.process import end_if_failed, until_stopped
from cardwise.said import Said

log = structlog.get_logger()

CHECK_AGAIN_S = 30.0
DRIVER_EVERY_S = 30.0
DRIVER_LATE_S = 5.0
"""From when on it is told that the driver has not answered."""
TOOLKIT_EVERY_S = 5.0
SYNC_S = 30.0
"""How long to wait for this node's pods before going on without: the kubelet needs us also while the API is down."""


@dataclass(slots=True)
class Agent:
    """All parts of one node's agent, not yet running."""

    settings: Settings
    inventory: Inventory
    pods: NodePods
    journal: Journal
    plugin: SlotPlugin
    registering: Registering
    sweeping: Sweeping
    isolating: Isolating
    publishing: Publishing
    wellness: Wellness
    using: Using
    cards: Cards
    reclaiming: Reclaiming
    refreshing: Refreshing
    metrics: Metrics
    toolkit: ToolkitFiles

    @asynccontextmanager
    async def running(self) -> AsyncIterator[int]:
        """Serve and work until the ``with`` ends; the port of the metrics."""
        async with self.working(), serving_http(Pages(self.metrics), self.settings.host, self.settings.port) as port:
            yield port

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Work until the ``with`` ends."""
        tasks: list[asyncio.Task[None]] = []

        def start(work: Callable[[], Coroutine[None, None, None]], name: str) -> None:
            task = asyncio.create_task(work(), name=name)
            task.add_done_callback(end_if_failed)
            tasks.append(task)

        try:
            start(self.pods.follow, "pods")
            start(partial(self._begin, start), "beginning")
            log.info("agent is up", cards=len(self.inventory.facts.cards))
            yield
        finally:
            for task in reversed(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.sweeping.preparing.owners.resources.close()
            self.journal.close()

    @property
    def hung(self) -> tuple[str, ...]:
        """After the end, what still waits for the driver: it must not be closed then."""
        return (*self.using.hung, *self.reclaiming.hung)

    async def _begin(self, start: Callable[[Callable[[], Coroutine[None, None, None]], str], None]) -> None:
        """The rest, in its order. It may take long while the API server is down: metrics are told meanwhile."""
        start(self.using.run, "using")
        start(self.reclaiming.run, "reclaiming")  # at once: it needs neither the kubelet nor the API server
        start(self.reclaiming.evicting.run, "evicting")
        start(self.look_around, "checks")
        start(self._look_for_rivals, "rivals")
        start(self._keep_toolkit, "toolkit")
        await self._synced()
        await self.sweeping.restore()
        await self.isolating.start()
        start(self.registering.run, "registering")
        start(self.sweeping.run, "sweeping")
        start(self.publishing.run, "publishing")
        start(self.isolating.run, "isolating")
        start(self.refreshing.run, "refreshing")

    async def _keep_toolkit(self) -> None:
        """Have the toolkit's files read before a start needs them: a large one takes long."""
        while True:
            with contextlib.suppress(ClusterError):  # a start that needs it says so
                await alone("toolkit", self.toolkit.read)
            await asyncio.sleep(TOOLKIT_EVERY_S)

    async def _look_for_rivals(self) -> None:
        folder, teller = Path(self.settings.kubelet_folder), self.sweeping.preparing.teller
        await tell_of_rivals(self.pods.port, teller, folder, self.settings.resource)

    async def look_around(self) -> None:
        """Say what an operator should know of this node, once."""
        for text in [*await self._node_findings(), *driver_findings(self.inventory.facts)]:
            log.warning("node", finding=text)
            self.sweeping.preparing.teller.of_node("CardwiseNodeCheck", text)

    async def _node_findings(self) -> Sequence[str]:
        """As soon as the API server tells of the node."""
        port, node, told = self.pods.port, self.pods.node, Said()
        while True:
            try:
                return node_findings(await port.get_node(node))
            except ClusterError as exc:
                if told.is_news(node, str(exc)):
                    log.warning("the node could not be checked yet", why=str(exc))
                await asyncio.sleep(CHECK_AGAIN_S)

    async def _synced(self) -> None:
        until_s = time.monotonic() + SYNC_S
        while not self.pods.synced and time.monotonic() < until_s:
            await asyncio.sleep(0.05)
        if not self.pods.synced:
            log.warning("this node's pods are not known yet; going on with the journal")


async def build(port: NodePort, settings: Settings, node: str, driver: Driver, facts: NodeFacts) -> Agent:
    """Wire the parts of a node's agent. Raises CardwiseError if the node or the settings do not allow it."""
    now_s = time.monotonic
    inventory = Inventory(facts)
    support = await probe(settings.mps_control)
    choose = partial(choose_steps, inventory, _offer(settings, facts, support), settings.isolation)
    standings = choose()
    mps = _supervisor(settings, support, standings)
    pods, teller = NodePods(port, node), Teller(port, node)
    journal = Journal(settings.journal)
    if journal.damage:
        log.error("the journal was begun anew", why=journal.damage)
        teller.of_node("CardwiseJournalDamaged", journal.damage)
    resources = PodResources(Path(settings.pod_resources_socket))
    owners = Owners(resources, Path(settings.kubelet_folder), settings.resource, pods, allocation_of)
    files = SlotFiles(Path(settings.cdi_folder))
    slots = Slots(settings.slots_per_card)
    changed = News()
    cgroups = Path(settings.cgroup_folder)
    isolating = Isolating(driver, inventory, journal, pods, mps, cgroups, changed.set, standings=standings)
    toolkit = ToolkitFiles([Path(folder) for folder in settings.cdi_read_folders])
    preparing = Preparing(node, owners, pods, inventory, journal, files, isolating, toolkit.read, teller)
    plugin = SlotPlugin(inventory, journal, preparing, slots, changed)
    registering = Registering(plugin, Path(settings.kubelet_folder), settings.resource)
    wellness = Wellness(inventory, journal, teller, now_s, changed.set, boot=_boot(Path(settings.proc_folder)))
    wellness.restore()
    cards = Cards(driver, [card.uuid for card in facts.cards], period_s=settings.sample_every_s)
    using = Using(driver, cards, wellness, inventory, journal, pods, Path(settings.proc_folder))
    refreshing = Refreshing(driver, isolating, choose, changed.set)
    using.divided = refreshing.changed.set
    models = ModelFolders([Path(folder) for folder in settings.model_folders])
    reclaiming = _reclaiming(settings, driver, preparing, now_s)
    preparing.reclaimed = reclaiming.evicting.why_not
    lending = partial(_lending, reclaiming)
    publishing = Publishing(port, node, settings.namespace, inventory, using.load, models, now_s, lending)
    isolating.tell = partial(publishing.tell_ready, wire.CONDITION_MPS)
    metrics = Metrics(inventory, journal, preparing, registering, isolating, wellness, using, publishing, reclaiming)
    plugin.took = metrics.took
    sweeping = Sweeping(preparing, settings.resource, changed.set)
    return Agent(
        settings,
        inventory,
        pods,
        journal,
        plugin,
        registering,
        sweeping,
        isolating,
        publishing,
        wellness,
        using,
        cards,
        reclaiming,
        refreshing,
        metrics,
        toolkit,
    )


def _boot(proc: Path) -> str:
    """What names the node's boot, or nothing where the kernel does not say. Source: random(4), boot_id."""
    with contextlib.suppress(OSError):
        return (proc / "sys" / "kernel" / "random" / "boot_id").read_text(encoding="ascii", errors="replace").strip()
    return ""


def _reclaiming(settings: Settings, driver: Driver, preparing: Preparing, now_s: Callable[[], float]) -> Reclaiming:
    """What looks at the cards' memory, lends it, and takes it back."""
    inventory, journal, pods, proc = preparing.inventory, preparing.journal, preparing.pods, Path(settings.proc_folder)
    most = settings.lend_most_pct / ALL_PCT
    policy = MarkPolicy(
        settings.high_mark_pct / ALL_PCT,
        settings.low_mark_pct / ALL_PCT,
        first_share=min(FIRST_LENT_SHARE, most),
        most_share=most,
    )
    uuids = [card.uuid for card in inventory.facts.cards]
    sampler = MemorySampler(driver)
    cards = Cards(sampler, uuids, period_s=settings.memory_every_s)
    marking = Marking(cards, sampler, inventory, journal, pods, proc, now_s, policy, lends=settings.reclaim != OFF)
    grace_s, teller = settings.reclaim_grace_s, preparing.teller
    evicting = Evicting(pods.port, pods.node, journal, time.time, grace_s, settings.reclaim_away_s)
    ending = EndPolicy(grace_s=grace_s)
    look_s = settings.memory_every_s / 2
    return Reclaiming(marking, evicting, teller, proc, now_s, settings.reclaim, ending, look_s)


def _lending(reclaiming: Reclaiming) -> Mapping[str, str]:
    """What the scheduler is told of lending."""
    return encode_lending(reclaiming.marking.lendable(), reclaiming.evicting.services_away())


def _supervisor(settings: Settings, support: MpsSupport | None, standings: dict[str, Standing]) -> Supervisor | None:
    """Of the MPS daemon, if a card stands on a step that needs it."""
    cards = tuple(uuid for uuid, standing in standings.items() if standing.mode is Isolation.MPS)
    if not cards or support is None:
        return None
    control = _control(settings, support, cards)
    return Supervisor(control, cards, time.monotonic, period_s=settings.mps_check_every_s)


def _offer(settings: Settings, facts: NodeFacts, support: MpsSupport | None) -> Offer:
    able = support or MpsSupport(version2=False, version3=False, static=False)
    mps = {each for each, can in ((Mps.V2, able.version2), (Mps.V3, able.version3)) if can}
    return Offer(
        frozenset(mps),
        cgroup_v2=is_version_2(Path(settings.cgroup_folder)),
        memory_limits=facts.memory_limits,
        can_mount=True,
        exclusive=True,
    )


def _control(settings: Settings, support: MpsSupport, cards: tuple[str, ...]) -> MpsControl:
    run = Path(settings.run_folder)
    cgroups = Path(settings.cgroup_folder)
    daemon = ControlDaemon(
        settings.mps_control, run / "mps", run / "mps-log", cards, shm_dir=run / "mps-shm", cgroups=cgroups
    )
    return MpsV3(daemon) if support.version3 else MpsV2(daemon)


async def run(port: NodePort, settings: Settings, node: str, *, end_within_s: float | None = None) -> None:
    """Run until SIGTERM or SIGINT. Without a driver it waits for one, and says so; so while another agent runs here.

    end_within_s: the process ends so soon after the signal, whatever hangs; None: it is not ended from here.
    Raises UserError if the node or the settings do not allow it.
    """
    await until_stopped(_until_told(_work(port, settings, node), end_within_s))


@asynccontextmanager
async def _until_told(work: Coroutine[None, None, None], end_within_s: float | None) -> AsyncIterator[None]:
    """Do the work until the ``with`` ends. If the work ends before, the process is told to stop, and what it raised."""
    task = asyncio.create_task(work, name="agent")
    task.add_done_callback(lambda _: os.kill(os.getpid(), signal.SIGTERM))
    try:
        yield
    finally:
        if end_within_s is not None:
            _end_after(end_within_s)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _end_after(seconds: float) -> None:
    """Nothing is tidied up then, and nothing is written: whoever reads our log may be what hangs."""
    ending = threading.Timer(seconds, os._exit, (1,))
    ending.daemon = True
    ending.start()


async def _work(port: NodePort, settings: Settings, node: str) -> None:
    """Everything, until cancelled."""
    teller, pages = Teller(port, node), Pages()
    with contextlib.closing(NodeLock(Path(settings.state_folder))) as lock:
        await _be_alone(lock, settings, teller, pages)
        async with serving_http(pages, settings.host, settings.port) as told_at:
            log.info("metrics are told", port=told_at)
            driver = Driver(sys_root=Path(settings.sys_folder))
            facts = await _facts(driver, teller, partial(pages.say, anew=True))
            pages.say("the agent's parts are put together")
            agent = await build(port, settings, node, driver, facts)
            pages.metrics = agent.metrics
            pages.say("")
            try:
                async with agent.working():
                    await asyncio.Event().wait()
            finally:
                if not agent.hung:  # else the library must not be released: the process may only end
                    driver.close()


async def _be_alone(lock: NodeLock, settings: Settings, teller: Teller, pages: Pages) -> None:
    """Wait until no other agent runs on this node. Pages are told meanwhile, unless it has our port too."""

    def say(text: str) -> None:
        log.error("this agent does nothing yet", why=text)
        teller.of_node("CardwiseAnotherAgent", text)
        pages.say(text)

    async with contextlib.AsyncExitStack() as stack:
        with contextlib.suppress(UserError):
            await stack.enter_async_context(serving_http(pages, settings.host, settings.port))
        await lock.wait(say)


async def _facts(driver: Driver, teller: Teller, say: Callable[[str], None] = to_nobody) -> NodeFacts:
    """What the driver tells of the node, as soon as there is one. say: is told what is waited for."""
    told = Said()
    while True:
        say("the driver is being read")
        try:
            facts = await _read(driver, teller, say)
        except DriverError as exc:
            if told.is_news("driver", str(exc)):
                log.error("no cards can be offered", why=str(exc))
            teller.of_node("CardwiseNoDriver", str(exc))
            say(str(exc))
            await asyncio.sleep(DRIVER_EVERY_S)
            continue
        for lost in facts.lost:
            log.error("a card cannot be opened", card=lost)
            teller.of_node("CardwiseCardLost", f"card {lost}")
        return facts


async def _read(driver: Driver, teller: Teller, say: Callable[[str], None]) -> NodeFacts:
    """Read the driver, and say for how long it has not answered. Raises DriverError."""

    def read() -> NodeFacts:
        driver.open()
        return driver.facts()

    begin_s, reading, told = time.monotonic(), alone("driver", read), Said()
    while not (await asyncio.wait([reading], timeout=DRIVER_LATE_S))[0]:
        late = f"the driver has not answered for {time.monotonic() - begin_s:.0f} s"
        if told.is_news("late", None):
            log.warning("no cards can be offered yet", why=late)
        teller.of_node("CardwiseNoDriver", f"the driver has not answered for {DRIVER_LATE_S:.0f} s; see dmesg")
        say(late)
    return reading.result()
