"""The feed into the ledger: old news, lost news and unreadable news never free a card that is held."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

import msgspec
import pytest
from structlog.testing import capture_logs

from cardwise.adapters import wire
from cardwise.adapters.allocations import encode
from cardwise.adapters.kube import feed
from cardwise.adapters.kube.port import All, Gone, Listing, Lost, Put
from cardwise.adapters.kube_objects import Node
from cardwise.adapters.watching import Watching
from cardwise.core.allocation import Allocation, Share
from cardwise.core.reasons import Code
from cardwise.errors import ClusterError, NotFoundError
from tests.builders import card, node
from tests.scheduler.fake_cluster import FakeCluster, books, node_object, pod, slice_limits

DONE = [{"type": "Initialized", "status": "True"}]


def bound(name="a", mib=4096, *, uid="", uuid="n0-card0", seq=1, text=None, **more):
    """A pod on n0 with an allocation, or with this text in its place."""
    if text is None:
        text = encode(Allocation("n0", (("app", (Share(uuid, mib, 20),)),), 1, seq))
    annotations = {wire.ANNOTATION_ALLOC: text}
    return pod(name, slice_limits(mib), uid=uid, node="n0", annotations=annotations, **more)


@pytest.fixture
def watching():
    made = Watching(books())
    made.hear_all([node_object(node("n0")), node_object(node("n1"))], [])
    return made


def used_mib(watching):
    if watching.ledger.outdated:
        watching.ledger.rebuild()
    cluster = watching.ledger.cluster
    return int((cluster.memory_total_mib - cluster.memory_free_mib).sum())


def claim(watching, told):
    watching.hear_pod(Put(told))
    return watching.pending[told.metadata.uid]


def bind(watching, name="a"):
    """Held and confirmed, before the feed tells."""
    wanted = claim(watching, pod(name))
    watching.ledger.hold(wanted, "n0")
    watching.ledger.confirm(wanted.uid)


def why_not(watching):
    wanted = claim(watching, pod("next"))
    return watching.ledger.hold(wanted, "n0").code


# ---------------------------------------------------------------- pods


def test_it_is_synced_once_nodes_and_pods_were_told():
    made = Watching(books())
    made.hear_node(All(()))
    assert not made.synced
    made.hear_pod(All(()))
    assert made.synced


def test_a_pod_that_is_not_bound_is_pending(watching):
    watching.hear_pod(Put(pod()))
    assert (list(watching.pending), watching.uids) == (["uid-a"], {"ns/a": "uid-a"})


def test_a_pod_that_is_bound_holds_its_cards_and_is_pending_no_more(watching):
    watching.hear_pod(Put(pod()))
    watching.hear_pod(Put(bound()))
    assert (watching.pending, used_mib(watching)) == ({}, 4096)


def test_news_from_before_a_binding_does_not_make_its_pod_pending(watching):
    bind(watching)
    watching.pending.clear()
    watching.hear_pod(Put(pod()))
    assert (watching.pending, used_mib(watching)) == ({}, 4096)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_ended_holds_nothing_though_it_is_still_there(watching, phase):
    watching.hear_pod(Put(bound()))
    watching.hear_pod(Put(bound(phase=phase)))
    assert (used_mib(watching), watching.uids) == (0, {})


def test_a_pod_that_is_being_deleted_holds_its_cards_to_the_end(watching):
    stopping = bound()
    watching.hear_pod(Put(stopping))
    watching.hear_pod(Put(bound(phase="Running")))
    assert used_mib(watching) == 4096
    watching.hear_pod(Gone(stopping))
    assert used_mib(watching) == 0


def test_a_pod_of_the_same_name_is_another_pod(watching):
    watching.hear_pod(Put(bound(uid="first")))
    watching.hear_pod(Gone(bound(uid="first")))
    watching.hear_pod(Put(bound(uid="second")))
    assert (used_mib(watching), watching.uids) == (4096, {"ns/a": "second"})


def test_the_late_delete_of_a_pod_leaves_the_next_of_its_name_alone(watching):
    watching.hear_pod(Put(bound(uid="first")))
    watching.hear_pod(Put(bound(uid="second")))
    watching.hear_pod(Gone(bound(uid="first")))
    assert (used_mib(watching), watching.uids) == (4096, {"ns/a": "second"})


@pytest.mark.parametrize("text", ["", "{", '{"v": 2}'], ids=["empty", "no JSON", "another version"])
def test_an_unreadable_allocation_fences_the_node_until_its_pod_is_gone(watching, text):
    watching.hear_pod(Put(bound(text=text)))
    assert why_not(watching) is Code.NODE_FENCED
    assert [each.text for each in watching.ledger.conflicts.values()] == ["n0 reports no card (unreadable allocation)"]
    watching.hear_pod(Gone(bound(text=text)))
    assert not watching.ledger.conflicts
    assert not watching.ledger.cluster.node_fenced.any()


def test_a_pod_on_a_node_by_its_own_hand_counts_with_its_cpu_and_breaks_nothing(watching):
    watching.hear_pod(Put(pod("greedy", {"cpu": "1"}, node="n0", overhead={"cpu": "9E"})))
    assert int(watching.ledger.cluster.cpu_free_milli[0]) == 0
    watching.hear_pod(Gone(pod("greedy", {"cpu": "1"}, node="n0")))
    assert int(watching.ledger.cluster.cpu_left_milli[0]) == 64000


def test_a_pod_that_is_initialized_gives_back_what_its_init_container_held(watching):
    shares = (("init", (Share("n0-card0", 10000, 50),)), ("app", (Share("n0-card0", 4000, 20),)))
    annotations = {wire.ANNOTATION_ALLOC: encode(Allocation("n0", shares, 1, 1))}
    told = {"inits": {"init": slice_limits(10000, 50)}, "node": "n0", "annotations": annotations}
    watching.hear_pod(Put(pod("a", slice_limits(4000), **told)))
    assert used_mib(watching) == 10000
    watching.hear_pod(Put(pod("a", slice_limits(4000), conditions=DONE, **told)))
    assert used_mib(watching) == 4000


# ---------------------------------------------------------------- lists


def test_a_pod_that_is_in_no_list_any_more_is_gone(watching):
    """Case C6."""
    watching.hear_pod(Put(bound()))
    watching.hear_pod(Lost("cut"))
    watching.hear_pod(Listing())
    watching.hear_pod(All(()))
    assert (used_mib(watching), watching.uids, watching.lists) == (0, {}, 2)


def test_a_binding_during_a_list_that_shows_its_pod_unbound_is_kept(watching):
    watching.hear_pod(Put(pod()))
    watching.hear_pod(Listing())
    bind(watching)
    watching.hear_pod(All((pod(),)))
    assert (used_mib(watching), watching.pending) == (4096, {})


def test_a_binding_during_a_list_that_does_not_have_its_pod_yet_is_kept(watching):
    watching.hear_pod(Listing())
    bind(watching)
    watching.hear_pod(All(()))
    assert used_mib(watching) == 4096


def test_a_binding_from_before_a_list_that_does_not_have_its_pod_is_gone(watching):
    bind(watching)
    watching.hear_pod(Listing())
    watching.hear_pod(All(()))
    assert used_mib(watching) == 0


def test_a_hold_from_before_a_list_that_does_not_have_its_pod_is_given_back(watching):
    watching.ledger.hold(claim(watching, pod()), "n0")
    watching.hear_pod(Listing())
    watching.hear_pod(All(()))
    watching.ledger.confirm("uid-a")
    assert used_mib(watching) == 0


@pytest.mark.parametrize("listed", [(), (pod(),)], ids=["not in the list yet", "unbound in the list"])
def test_a_hold_that_was_made_during_a_list_is_kept(watching, listed):
    watching.hear_pod(Listing())
    watching.ledger.hold(claim(watching, pod()), "n0")
    watching.hear_pod(All(listed))
    assert used_mib(watching) == 4096


def test_a_hold_from_before_a_list_that_shows_its_pod_unbound_is_kept(watching):
    watching.ledger.hold(claim(watching, pod()), "n0")
    watching.hear_pod(Listing())
    watching.hear_pod(All((pod(),)))
    assert used_mib(watching) == 4096


def test_a_pod_whose_binding_failed_is_still_pending(watching):
    watching.ledger.hold(claim(watching, pod()), "n0")
    watching.hear_pod(Put(pod()))
    watching.hear_pod(Listing())
    watching.hear_pod(All((pod(),)))
    watching.ledger.release("uid-a")
    assert list(watching.pending) == ["uid-a"]


def test_pods_that_ended_are_not_counted_from_a_list(watching):
    watching.hear_pod(All((bound(phase="Succeeded"),)))
    assert (used_mib(watching), watching.uids) == (0, {})


# ---------------------------------------------------------------- nodes


def test_a_node_that_goes_takes_its_cards_along_and_brings_them_back(watching):
    watching.hear_pod(Put(bound()))
    watching.hear_node(Gone(node_object(node("n0"))))
    assert used_mib(watching) == 0
    watching.hear_node(Put(node_object(node("n0"))))
    assert used_mib(watching) == 4096


def test_a_list_of_nodes_drops_those_that_are_not_in_it(watching):
    watching.hear_node(All((node_object(node("n1")),)))
    assert watching.ledger.cluster.node_names == ("n1",)


def test_a_node_whose_inventory_is_unreadable_takes_nothing(watching):
    watching.hear_node(Put(node_object(node("n0"), annotations={wire.ANNOTATION_CARDS: "["})))
    assert why_not(watching) is Code.NODE_CORDONED


@pytest.mark.parametrize("key", [wire.ANNOTATION_CARDS, wire.ANNOTATION_LOAD])
def test_an_annotation_of_lists_in_lists_is_unreadable_and_ends_nothing(watching, key):
    nested = '[{"x":' * (key == wire.ANNOTATION_CARDS) + "[" * 100_000
    watching.hear_node(Put(node_object(node("n0"), annotations={key: nested})))
    assert watching.ledger.nodes["n0"].cards == () or key == wire.ANNOTATION_LOAD


def test_pods_on_a_node_whose_inventory_is_unreadable_are_a_contradiction(watching):
    watching.hear_pod(Put(bound()))
    watching.hear_node(Put(node_object(node("n0"), annotations={wire.ANNOTATION_CARDS: "["})))
    watching.ledger.rebuild()
    assert [each.pod for each in watching.ledger.conflicts.values()] == ["ns/a"]


@pytest.mark.parametrize("status", ["False", "True"])
def test_what_a_node_says_of_itself_is_remembered(watching, status):
    said = [{"type": wire.CONDITION_CONSISTENT, "status": status}]
    watching.hear_node(Put(node_object(node("n0"), conditions=said)))
    assert watching.inconsistent == ({"n0"} if status == "False" else set())


@pytest.mark.parametrize(("text", "share"), [('{"n0-card0": 0.25}', 0.25), ('{"n0-card0": 7}', 1.0)])
def test_measured_load_is_taken_over_within_its_bounds(watching, text, share):
    watching.hear_node(Put(node_object(node("n0"), annotations={wire.ANNOTATION_LOAD: text})))
    assert watching.ledger.cluster.compute_used_share[0, 0] == share


def test_an_unreadable_load_leaves_the_card_unmeasured(watching):
    watching.hear_node(Put(node_object(node("n0"), annotations={wire.ANNOTATION_LOAD: "?"})))
    assert watching.ledger.loads.get("n0", {}) == {}


def test_a_broken_watch_of_nodes_changes_nothing(watching):
    watching.hear_node(Lost("cut"))
    assert watching.synced


def test_two_nodes_that_report_one_card_end_nothing_and_both_take_nothing_until_one_has_gone(watching):
    """A machine that comes back under another name."""
    watching.hear_node(Put(node_object(node("n9", cards=[card("n0-card0")]))))
    assert why_not(watching) is Code.NODE_FENCED
    assert [each.node for each in watching.ledger.conflicts.values()] == ["n0", "n9"]
    watching.hear_node(Put(node_object(node("n9", cards=[card("n0-card0")], schedulable=False))))
    watching.hear_node(Gone(node_object(node("n0"))))
    watching.ledger.rebuild()
    assert (watching.ledger.conflicts, watching.ledger.cluster.cards_total) == ({}, 2)


class Trap(dict):
    """Annotations that break whoever reads them."""

    def get(self, *_):
        raise RecursionError("deep")

    def __contains__(self, _):
        raise RecursionError("deep")


def trapped(told):
    return msgspec.structs.replace(
        told, metadata=msgspec.structs.replace(told.metadata, annotations=Trap(told.metadata.annotations))
    )


@pytest.mark.parametrize("event", [Put, lambda told: All((told, node_object(node("n1"))))], ids=["a change", "a list"])
def test_a_node_that_breaks_its_reader_takes_nothing_and_ends_nothing(watching, event):
    watching.hear_node(event(trapped(node_object(node("n0")))))
    assert why_not(watching) is Code.NODE_CORDONED
    assert watching.ledger.nodes["n1"].cards


@pytest.mark.parametrize("event", [Put, lambda told: All((told,))], ids=["a change", "a list"])
def test_a_pod_that_breaks_its_reader_fences_its_node_and_ends_nothing(watching, event):
    watching.hear_pod(event(trapped(bound())))
    assert why_not(watching) is Code.NODE_FENCED
    assert [each.pod for each in watching.ledger.conflicts.values()] == ["ns/a"]


@pytest.mark.parametrize("event", [Put, lambda told: All((told,))], ids=["a change", "a list"])
def test_a_pod_that_breaks_its_reader_before_it_is_bound_waits_and_ends_nothing(watching, event):
    watching.hear_pod(event(trapped(pod())))
    assert list(watching.pending) == ["uid-a"]


# ---------------------------------------------------------------- pods that a list does not have


@pytest.fixture
def missed(watching):
    """A pod was bound while a list was made, which does not have it."""
    watching.hear_pod(Listing())
    bind(watching)
    watching.hear_pod(All(()))
    return watching


@pytest.mark.parametrize(
    "api",
    [FakeCluster(), FakeCluster(pod(uid="next")), FakeCluster(bound(phase="Succeeded"))],
    ids=["gone", "another of its name", "ended"],
)
async def test_a_pod_that_went_before_the_list_that_does_not_have_it_is_given_back_once_it_was_asked_for(missed, api):
    assert await missed.read_back(api)
    assert (used_mib(missed), missed.ledger.unlisted) == (0, set())


async def test_a_pod_that_came_after_the_list_that_does_not_have_it_is_kept(missed):
    assert await missed.read_back(FakeCluster(bound()))
    assert (used_mib(missed), missed.ledger.unlisted) == (4096, set())


async def test_a_pod_that_cannot_be_asked_for_is_kept_and_asked_for_again(missed):
    api = FakeCluster()
    api.dead = True
    assert not await missed.read_back(api)
    assert used_mib(missed) == 4096
    api.dead = False
    assert await missed.read_back(api)
    assert used_mib(missed) == 0


async def test_one_pod_that_cannot_be_asked_for_keeps_none_of_the_others(watching):
    class Picky(FakeCluster):
        async def get_pod(self, namespace, name):
            if name == "a":
                raise ClusterError("no", retry=True)
            return await super().get_pod(namespace, name)

    watching.hear_pod(Listing())
    bind(watching, "a")
    bind(watching, "b")
    watching.hear_pod(All(()))
    assert not await watching.read_back(Picky())
    assert watching.ledger.unlisted == {"uid-a"}
    assert used_mib(watching) == 4096


async def test_an_answer_from_before_a_list_says_nothing_of_a_pod_that_this_list_does_not_have(missed):
    class Late(FakeCluster):
        async def get_pod(self, *_):
            missed.hear_pod(Listing())
            missed.ledger.fresh.add("uid-a")  # confirmed only now
            missed.hear_pod(All(()))
            return bound()

    await missed.read_back(Late())
    assert missed.ledger.unlisted == {"uid-a"}


async def test_a_hold_under_way_whose_pod_went_before_the_list_is_given_back_and_no_answer_brings_it_back(watching):
    watching.hear_pod(Listing())
    watching.ledger.hold(claim(watching, pod()), "n0")
    watching.hear_pod(All(()))
    await watching.read_back(FakeCluster())
    watching.ledger.confirm("uid-a")
    assert used_mib(watching) == 0


# ---------------------------------------------------------------- streams


class Streams:
    """A port whose streams of pods tell what is put into them. opened: one queue per stream. asked: pods, by name."""

    def __init__(self):
        self.opened, self.asked, self.failures = [], [], 0

    async def get_pod(self, namespace, name):
        self.asked.append(f"{namespace}/{name}")
        if self.failures:
            self.failures -= 1
            raise ClusterError("no answer in time", retry=True)
        raise NotFoundError("gone", retry=False)

    async def follow_pods(self):
        queue = asyncio.Queue()
        self.opened.append(queue)
        while True:
            yield await queue.get()

    async def follow_nodes(self):
        await asyncio.Event().wait()
        yield Lost("never")


@contextlib.asynccontextmanager
async def following(made):
    port = Streams()
    task = asyncio.create_task(made.follow(port))
    await _until(lambda: port.opened)
    yield port
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def _until(true):
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0)


async def test_to_hear_afresh_ends_the_old_stream_so_that_its_old_news_is_never_told(watching):
    async with following(watching) as port:
        port.opened[0].put_nowait(All((bound(),)))
        await _until(lambda: watching.uids)
        afresh = asyncio.create_task(watching.hear_afresh())
        await _until(lambda: len(port.opened) == 2)
        port.opened[0].put_nowait(Put(bound("old")))
        port.opened[1].put_nowait(Listing())
        await asyncio.sleep(0.01)
        assert not afresh.done()
        port.opened[1].put_nowait(All((bound("new"),)))
        await afresh
        assert watching.uids == {"ns/new": "uid-new"}
        port.opened[1].put_nowait(Gone(bound("new")))
        await _until(lambda: not watching.uids)


async def test_to_hear_afresh_fails_when_the_list_does_and_the_stream_goes_on(watching):
    async with following(watching) as port:
        afresh = asyncio.create_task(watching.hear_afresh())
        await _until(lambda: len(port.opened) == 2)
        port.opened[1].put_nowait(Lost("no way"))
        with pytest.raises(ClusterError, match="no way") as caught:
            await afresh
        assert caught.value.retry
        port.opened[1].put_nowait(All((bound(),)))
        await _until(lambda: watching.uids)


async def test_one_who_no_longer_waits_to_hear_afresh_breaks_nothing(watching):
    async with following(watching) as port:
        afresh = asyncio.create_task(watching.hear_afresh())
        await asyncio.sleep(0)
        afresh.cancel()
        await _until(lambda: len(port.opened) == 2)
        port.opened[1].put_nowait(All((bound(),)))
        await _until(lambda: watching.uids)


async def test_a_pod_that_a_list_does_not_have_is_asked_for_until_there_is_an_answer(watching, monkeypatch):
    monkeypatch.setattr(feed, "BACKOFF_FIRST_S", 0.001)
    async with following(watching) as port:
        port.failures = 2
        port.opened[0].put_nowait(Listing())
        await _until(port.opened[0].empty)
        bind(watching)
        port.opened[0].put_nowait(All(()))
        async with asyncio.timeout(20):
            while watching.ledger.pods:
                await asyncio.sleep(0.001)
        assert port.asked == ["ns/a"] * 3


# ---------------------------------------------------------------- what is said of it


def a_node(key, text):
    return Put(node_object(node("n0"), annotations={key: text}))


def unreadable(text):
    """Kinds of news that cannot be read, with this text."""
    return {
        "inventory": a_node(wire.ANNOTATION_CARDS, text),
        "load": a_node(wire.ANNOTATION_LOAD, text),
        "kept": Put(pod("a", annotations={wire.ANNOTATION_NOMINATED: text})),
        "allocation": Put(bound(text=text)),
    }


READABLE = {
    "inventory": Put(node_object(node("n0"))),
    "load": Put(node_object(node("n0"))),
    "kept": Put(pod("a")),
    "allocation": Put(bound(uuid="n0-card0")),
}


@pytest.fixture
def spoken():
    """A feed, its clock, and how often it said something since last asked."""
    clock = SimpleNamespace(now_s=100.0)
    made = Watching(books(), lambda: clock.now_s)
    made.hear_all([node_object(node("n0"))], [])
    with capture_logs() as logs:

        def hear(event):
            before = len(logs)
            (made.hear_node if isinstance(event.object, Node) else made.hear_pod)(event)
            return len(logs) - before

        yield SimpleNamespace(clock=clock, hear=hear)


@pytest.mark.parametrize("what", [*READABLE])
def test_what_stays_unreadable_is_said_once_and_again_when_it_is_another_or_a_while_has_passed(spoken, what):
    assert [spoken.hear(unreadable("{")[what]) for _ in range(3)] == [1, 0, 0]
    assert [spoken.hear(unreadable("}")[what]) for _ in range(3)] == [1, 0, 0]
    spoken.clock.now_s += 300
    assert [spoken.hear(unreadable("}")[what]) for _ in range(3)] == [1, 0, 0]


@pytest.mark.parametrize("what", [*READABLE])
def test_what_was_mended_and_is_unreadable_again_is_said_again(spoken, what):
    spoken.hear(unreadable("{")[what])
    assert spoken.hear(READABLE[what]) == 0
    assert spoken.hear(unreadable("{")[what]) == 1


def test_a_watch_that_breaks_again_and_again_for_one_reason_is_said_once(watching):
    with capture_logs() as logs:
        for _ in range(3):
            watching.hear_pod(Lost("the API server is away"))
            watching.hear_node(Lost("the API server is away"))
    assert sorted(each["event"] for each in logs) == ["the watch of nodes broke", "the watch of pods broke"]
