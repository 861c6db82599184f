"""The law of the scheduler: whatever happens in whatever order, no card is oversold, and the books end up true.

Between a question and its answer anything else may happen: pods come and go, events arrive late, watches break and are
listed again, answers are lost on the way there or on the way back, requests are cut off, processes die, others take
over. One thing is taken for granted: a write whose answer was given up for lost does not happen later.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from unittest import mock

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cardwise.adapters.extender_v1 import ExtenderArgs, ExtenderBindingArgs
from cardwise.adapters.kube import feed
from cardwise.adapters.kube.port import All, Listing, Put
from cardwise.adapters.watching import Watching
from cardwise.core.allocation import holds
from cardwise.errors import ClusterError, NotFoundError
from cardwise.scheduler.binder import Binder
from cardwise.scheduler.extender import Extender
from tests.builders import CARD_MIB, node
from tests.scheduler.fake_cluster import DEAD, FakeCluster, books, node_object, pod, slice_limits

SPECS = (node("n0"), node("n1"))
ASKED = object()
"""The state of a list whose turn at the API server has not come."""
NAMES = ("a", "b", "c")
SLICES = st.builds(slice_limits, st.sampled_from([20000, 12000, 4096]), st.sampled_from([20, 50, 60]))


@dataclass(eq=False)
class Write:
    """A binding on its way. landed: it was done or refused; error: what the API server says of it."""

    binding: object
    answer: asyncio.Future
    landed: bool = False
    error: ClusterError | None = None


class Slow(FakeCluster):
    """Its writes land, and are answered, when the machine says so."""

    def __init__(self):
        super().__init__()
        self.writes = []

    async def bind(self, binding):
        write = Write(binding, asyncio.get_running_loop().create_future())
        self.writes.append(write)
        await write.answer

    def land(self, write):
        if not write.landed:
            write.landed = True
            try:
                self.write(write.binding)
            except ClusterError as error:
                write.error = error

    def reply(self, write, error):
        self.writes.remove(write)
        if error is None:
            write.answer.set_result(None)
        else:
            write.answer.set_exception(error)


class Replica:
    """One process. heard: how much of the cluster's history; list: what it is being told, while it lists.

    reads: answers to its questions for pods that no list had, on their way.
    """

    def __init__(self, api):
        self.api, self.leads, self.now_s = api, False, 0.0
        self.ledger = books()
        self.watching = Watching(self.ledger)
        self.watching.hear_node(All(tuple(map(node_object, SPECS))))
        self.extender = Extender(self.ledger, lambda: self.now_s)
        self.binder = Binder(api, self.ledger, self.extender, lambda: None if self.leads else "not the leader")
        self.heard, self.list, self.tasks, self.reads = 0, None, [], []
        self.begin_list()
        self.end_list()

    def begin_list(self):
        self.watching.hear_pod(Listing())
        self.list = ASKED

    def take_list(self):
        """The API server gets to it."""
        if self.list is ASKED:
            self.list = (self.api.all(), len(self.api.history))

    def end_list(self):
        self.take_list()
        told, self.heard = self.list
        self.list = None
        self.watching.hear_pod(told)

    def hear(self, count):
        for event in self.api.history[self.heard : self.heard + count] if self.list is None else ():
            self.watching.hear_pod(event)
            self.heard += 1

    async def get_pod(self, namespace, name):
        """What was there when it was asked, told later."""
        answer = asyncio.get_running_loop().create_future()
        self.reads.append(answer)
        told = self.api.pods.get(f"{namespace}/{name}")
        await answer
        if told is None:
            raise NotFoundError(f"pods {name} not found", retry=False)
        return told

    def answer_reads(self, error):
        reads, self.reads = self.reads, []
        for read in (each for each in reads if not each.done()):
            read.set_result(None) if error is None else read.set_exception(error)

    def lead(self, epoch):
        """As ``main.py`` does when elected."""
        self.ledger.epoch, self.ledger.seq = epoch, 0
        self.begin_list()
        self.end_list()
        self.leads = True


def state(ledger):
    c = ledger.cluster
    arrays = (c.cpu_left_milli, c.host_memory_left_mib, c.memory_free_mib, c.compute_free_milli, c.card_slices)
    return [array.tolist() for array in arrays], sorted(ledger.pods), sorted(ledger.conflicts)


class AnyInterleaving(RuleBasedStateMachine):
    """``replicas[0]`` leads."""

    def __init__(self):
        super().__init__()
        self.patch = mock.patch.object(feed, "BACKOFF_FIRST_S", 0.0)
        self.patch.start()
        self.loop = asyncio.new_event_loop()
        self.api = Slow()
        self.count = self.epoch = 0

    @initialize()
    def start(self):
        self.replicas = [Replica(self.api), Replica(self.api)]
        self.elect()

    def elect(self):
        self.epoch += 1
        self.leader.lead(self.epoch)

    @property
    def leader(self):
        return self.replicas[0]

    def run_a_little(self):
        async def turns():
            for _ in range(8):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())

    # ---------------------------------------------------------------- users and kubelets

    def there(self, name, limits, init):
        """The pod of that name; a new one if there is none."""
        if f"ns/{name}" not in self.api.pods:
            self.count += 1
            inits = {"init": init} if init else {}
            self.api.create(pod(name, limits, uid=f"{name}-{self.count}", inits=inits))
        return self.api.pods[f"ns/{name}"]

    @rule(name=st.sampled_from(NAMES), what=st.sampled_from(["goes", "goes", "ends", "is initialized"]))
    def a_pod(self, name, what):
        before = self.api.pods.get(f"ns/{name}")
        if before is None:
            return
        if what == "goes":
            self.api.delete(before.name)
        elif before.spec.node_name and what == "ends":  # its object stays, but lists and watches no longer have it
            del self.api.pods[before.name]
            self.api.history.append(Put(_changed(before, phase="Succeeded")))
        elif before.spec.node_name:
            self.api.create(_changed(before, conditions=({"type": "Initialized", "status": "True"},)))

    # ---------------------------------------------------------------- kube-scheduler

    @rule(name=st.sampled_from(NAMES), limits=SLICES, init=st.none() | SLICES, later_s=st.sampled_from([0.0, 5.0]))
    def filter(self, name, limits, init, later_s):
        self.leader.now_s += later_s
        asked = self.there(name, limits, init)
        self.leader.extender.filter(ExtenderArgs(asked, [spec.name for spec in SPECS]))

    @rule(
        name=st.sampled_from(NAMES),
        limits=SLICES,
        init=st.none() | SLICES,
        where=st.sampled_from(["n0", "n1"]),
        which=st.sampled_from([0, 0, 0, 1]),
    )
    def bind(self, name, limits, init, where, which):
        """Asked of the standby, it must refuse."""
        args = ExtenderBindingArgs(name, "ns", self.there(name, limits, init).metadata.uid, where)
        replica = self.replicas[which]
        replica.tasks.append(self.loop.create_task(replica.binder.bind(args)))
        self.run_a_little()

    @precondition(lambda self: any(not task.done() for task in self.leader.tasks))
    @rule(data=st.data())
    def cut_off(self, data):
        """A request is given up in the middle, and with it a write that has happened or will not."""
        i = data.draw(st.sampled_from([i for i, task in enumerate(self.leader.tasks) if not task.done()]))
        for write in self.api.writes:
            if data.draw(st.booleans()):
                self.api.land(write)
        self.leader.tasks[i].cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.api.writes = [write for write in self.api.writes if not write.answer.done()]
        self.run_a_little()

    # ---------------------------------------------------------------- the API server

    @precondition(lambda self: self.api.writes)
    @rule(data=st.data())
    def a_write_lands(self, data):
        self.api.land(data.draw(st.sampled_from(self.api.writes)))

    @precondition(lambda self: self.api.writes)
    @rule(data=st.data(), answer=st.sampled_from(["comes", "comes", "is lost", "is lost, and the server away"]))
    def an_answer(self, data, answer):
        write = data.draw(st.sampled_from(self.api.writes))
        lost = answer != "comes"
        self.api.dead = self.api.dead or "away" in answer
        if not lost:
            self.api.land(write)
        self.api.reply(write, DEAD if lost else write.error)
        self.run_a_little()

    @precondition(lambda self: self.api.dead)
    @rule()
    def the_server_is_back(self):
        self.api.dead = False
        self.run_a_little()

    # ---------------------------------------------------------------- events

    @rule(which=st.sampled_from([0, 0, 1]), count=st.integers(1, 4))
    def events_arrive(self, which, count):
        self.replicas[which].hear(count)

    @rule(which=st.sampled_from([0, 0, 1]))
    def a_list_begins_or_ends(self, which):
        replica = self.replicas[which]
        replica.begin_list() if replica.list is None else replica.end_list()

    @rule(which=st.sampled_from([0, 0, 1]))
    def a_list_is_taken(self, which):
        """What happens between its begin and this is in it, or gone from it."""
        self.replicas[which].take_list()

    @rule(
        name=st.sampled_from(NAMES),
        limits=SLICES,
        where=st.sampled_from(["n0", "n1"]),
        gone=st.booleans(),
        answered=st.booleans(),
    )
    def a_pod_is_bound_while_a_list_waits_its_turn(self, name, limits, where, gone, answered):
        """And may be gone again before it: what the list does not have, and no event tells."""
        if self.leader.list is None:
            self.leader.begin_list()
        self.bind(name, limits, None, where, 0)
        for write in list(self.api.writes):
            self.api.land(write)
            if answered:
                self.api.reply(write, write.error)
        self.run_a_little()
        if gone:
            self.a_pod(name, "goes")

    @rule(which=st.sampled_from([0, 0, 1]))
    def what_was_not_listed_is_asked_for(self, which):
        replica = self.replicas[which]
        if replica.ledger.unlisted and not replica.reads:
            replica.tasks.append(self.loop.create_task(replica.watching.read_back(replica)))
            self.run_a_little()

    @precondition(lambda self: any(replica.reads for replica in self.replicas))
    @rule(lost=st.booleans())
    def what_was_asked_for_is_told(self, lost):
        for replica in self.replicas:
            replica.answer_reads(DEAD if lost else None)
        self.run_a_little()

    # ---------------------------------------------------------------- processes

    @rule(data=st.data(), restart=st.booleans())
    def another_leads(self, data, restart):
        """A new process, or the standby: after the last write of the old leader has ended, seen or not."""
        self.leader.leads = False
        for write in list(self.api.writes):
            if data.draw(st.booleans()):
                self.api.land(write)
            self.api.reply(write, DEAD)
        if restart:
            self.kill(self.leader)
            self.replicas[0] = Replica(self.api)
        else:
            self.run_a_little()
            self.replicas.reverse()
        self.elect()

    def kill(self, replica):
        for _ in range(2):  # what the first cancelling begins, too: a dead process begins nothing
            for task in [*replica.tasks, *replica.binder._unsettled]:
                task.cancel()
            self.loop.run_until_complete(asyncio.sleep(0))

    # ---------------------------------------------------------------- laws

    @invariant()
    def no_card_is_oversold(self):
        used_mib, used_pct = defaultdict(int), defaultdict(int)
        for each in self.api.bound_pods():
            for hold in holds(each.claim, each.allocation, initialized=each.initialized):
                used_mib[hold.uuid] += hold.memory_mib
                used_pct[hold.uuid] += hold.compute_pct
        assert max(used_mib.values(), default=0) <= CARD_MIB
        assert max(used_pct.values(), default=0) <= 100

    @invariant()
    def what_is_bound_is_counted_as_it_is_bound(self):
        for each in self.api.bound_pods() if hasattr(self, "replicas") else ():
            assert self.leader.ledger.allocation_of(each.claim.uid) == each.allocation

    @invariant()
    def the_leader_sees_no_contradiction(self):
        assert not (hasattr(self, "replicas") and self.leader.ledger.conflicts)

    def teardown(self):
        try:
            if hasattr(self, "replicas"):
                self.all_is_heard_in_the_end()
        finally:
            for replica in getattr(self, "replicas", ()):
                self.kill(replica)
            self.loop.close()
            self.patch.stop()

    def all_is_heard_in_the_end(self):
        self.api.dead = False
        for write in list(self.api.writes):
            self.api.land(write)
            self.api.reply(write, write.error)
        self.run_a_little()
        truth = books(*self.leader.ledger.nodes.values())
        truth.reset(truth.nodes.values(), self.api.bound_pods())
        for replica in self.replicas:
            if replica.list is not None:
                replica.end_list()
            replica.hear(len(self.api.history))
            while replica.reads or replica.ledger.unlisted:
                self.what_was_not_listed_is_asked_for(self.replicas.index(replica))
                self.what_was_asked_for_is_told(lost=False)
            assert not replica.ledger.under_way
            assert state(replica.ledger) == state(truth)
            unbound = {each.metadata.uid for each in self.api.pods.values() if not each.spec.node_name}
            assert replica.watching.pending.keys() == unbound


def _changed(before, **status):
    metadata, spec = before.metadata, before.spec
    made = pod(metadata.name, uid=metadata.uid, **status)
    return type(before)(metadata, spec, made.status)


AnyInterleaving.TestCase.settings = settings(max_examples=100, stateful_step_count=30)
TestAnyInterleaving = AnyInterleaving.TestCase
