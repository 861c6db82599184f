"""Replicas as a cluster tells them: who joins, who rests, who drains, and what holds while nobody tells anything."""

from __future__ import annotations

import asyncio
import contextlib
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from cardwise.gateway import discovering, membership
from cardwise.gateway.discovering import Slices
from cardwise.gateway.opting import Taken
from cardwise.gateway.routes import route_of
from cardwise.gateway.service import Service
from cardwise.gateway.settings import ServiceSettings
from tests.gateway.cluster import Cluster, annotated, endpoint, gateway, named, open_to, slice_at, slice_of
from tests.gateway.world import echo, number, until, upstream


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(membership, "MISSING_S", 0.3)


def ready(world):
    return [each.url for each in world.service.replicas if each.ready]


async def answers(client, times=12, **more):
    return [(await client.post("/", content=b"x", **more)).status_code for _ in range(times)]


class Held:
    """A replica that answers when it is told to."""

    def __init__(self):
        self.go = asyncio.Event()

    async def __call__(self, asked):
        await self.go.wait()
        asked.answer(200, b"late")


# ---------------------------------------------------------------- a Service that the settings name


async def test_a_new_endpoint_is_warmed_up_and_then_gets_requests():
    cluster = Cluster()
    async with upstream(echo) as replica, gateway(cluster, named()) as world, world.client() as client:
        assert (await client.get("/")).headers["x-cardwise-reason"] == "no-replica"
        replica.ready = False
        cluster.all_slices(slice_at(replica.url))
        await until(lambda: world.service.replicas)
        assert not world.service.is_ready
        replica.ready = True
        await until(lambda: world.service.is_ready)
        assert (await client.get("/")).status_code == 200
        assert cluster.followed == [("slices", "ns", "s")]


@pytest.mark.parametrize("told", ["terminating", "gone", "deleted"])
async def test_an_endpoint_that_ends_gets_nothing_new_and_finishes_what_it_has(told):
    cluster, held = Cluster(), Held()
    async with upstream(held) as one, upstream(echo) as other:
        first, second = slice_at(one.url, "s-1"), slice_at(other.url, "s-2")
        async with gateway(cluster, named()) as world, world.client() as client:
            cluster.all_slices(first)
            await until(lambda: ready(world) == [one.url])
            in_flight = asyncio.create_task(client.get("/"))
            await until(lambda: one.asked)
            cluster.put(second)
            await until(lambda: len(ready(world)) == 2)
            if told == "terminating":
                cluster.put(slice_at(one.url, "s-1", terminating=True))
            elif told == "gone":
                cluster.put(slice_of("s-1", port=one.port))
            else:
                cluster.gone(first)
            await until(lambda: ready(world) == [other.url])
            assert await answers(client) == [200] * 12
            assert len(one.asked) == 1
            assert [each.in_flight for each in world.service.members.leaving] == [1]
            held.go.set()
            assert (await in_flight).content == b"late"
            await until(lambda: not world.service.members.leaving and not one.connections)


async def the_only(replica, cluster, world):
    """What the gateway knows a replica as, once its slice is told and it is ready."""
    cluster.all_slices(slice_at(replica.url, "s-1"))
    await until(lambda: world.service.is_ready)
    (known,) = world.service.replicas
    return known


async def test_an_endpoint_that_is_not_ready_rests_and_goes_on_with_what_it_has_learnt():
    cluster = Cluster()
    async with upstream(echo) as replica, gateway(cluster, named()) as world, world.client() as client:
        known = await the_only(replica, cluster, world)
        cluster.put(slice_at(replica.url, ready=False))
        await until(lambda: not world.service.is_ready)
        assert (await client.get("/")).status_code == 503
        cluster.put(slice_at(replica.url))
        await until(lambda: world.service.is_ready)
        assert world.service.replicas == [known]
        assert (await client.get("/")).status_code == 200


async def test_one_that_is_not_ready_from_the_start_is_not_even_asked():
    cluster = Cluster()
    async with upstream(echo) as one, upstream(echo) as other, gateway(cluster, named()) as world:
        cluster.all_slices(slice_at(one.url, "s-1", ready=False), slice_at(other.url, "s-2"))
        await until(lambda: ready(world) == [other.url])
        assert not one.connections


async def test_an_endpoint_that_moves_to_another_slice_is_not_interrupted():
    cluster = Cluster()
    async with upstream(echo) as replica, gateway(cluster, named()) as world:
        known = await the_only(replica, cluster, world)
        for old, new in (("s-1", "s-2"), ("s-2", "s-1"), ("s-1", "s-2")):
            cluster.put(slice_of(old, port=replica.port))
            await asyncio.sleep(0.02)
            cluster.put(slice_at(replica.url, new))
            await until(cluster.slices.empty)
        await asyncio.sleep(0.5)
        assert world.service.replicas == [known]
        assert not world.service.members.leaving


async def test_a_move_that_is_told_while_the_process_stands_still_interrupts_nothing():
    """What came meanwhile is read in the turns of the loop after the stall, of which a timer has the first."""
    cluster = Cluster()
    async with upstream(echo) as replica, gateway(cluster, named()) as world:
        known = await the_only(replica, cluster, world)
        (running,) = world.gateway.discovery._named
        cluster.put(slice_of("s-1", port=replica.port))
        await until(lambda: running.membership._missing)
        time.sleep(0.7)  # all of the process
        for _ in range(5):
            await asyncio.sleep(0)
        cluster.put(slice_at(replica.url, "s-2"))
        await until(lambda: not running.membership._missing)
        assert world.service.replicas == [known]
        assert not world.service.members.leaving


async def test_a_pod_that_took_over_an_address_is_warmed_up_as_new():
    cluster = Cluster()
    async with upstream(echo) as replica, gateway(cluster, named()) as world:
        cluster.all_slices(slice_at(replica.url, uid="old"))
        await until(lambda: world.service.is_ready)
        (old,) = world.service.replicas
        both = endpoint(replica.url, terminating=True, uid="old"), endpoint(replica.url, uid="new")
        cluster.put(slice_of("s-1", *both, port=replica.port))
        await until(lambda: world.service.is_ready and world.service.replicas != [old])
        lines = (await world.admin("/metrics")).text
        assert lines.count(f'cardwise_gateway_limit{{replica="{replica.url}"') == 1


async def test_while_the_api_server_is_away_replicas_stay_as_they_were_told_last():
    cluster = Cluster()
    async with upstream(echo) as replica, gateway(cluster, named()) as world, world.client() as client:
        cluster.all_slices(slice_at(replica.url))
        await until(lambda: world.service.is_ready)
        with capture_logs() as logs:
            for _ in range(3):
                cluster.lost()
            await until(lambda: world.gateway.discovery.breaks["ns"] == 3)
        assert [each["event"] for each in logs] == ["the watch broke; replicas stay as they are"]  # said once
        await asyncio.sleep(0.5)
        assert await answers(client) == [200] * 12
        assert number((await world.admin("/metrics")).text, "cardwise_gateway_cluster_breaks_total") == 3


async def test_a_list_is_the_whole_truth_whatever_was_missed():
    cluster = Cluster()
    async with upstream(echo) as one, upstream(echo) as other, gateway(cluster, named()) as world:
        cluster.all_slices(slice_at(one.url, "s-1"))
        await until(lambda: ready(world) == [one.url])
        cluster.all_slices(slice_at(other.url, "s-2"))
        await until(lambda: ready(world) == [other.url])


def test_a_list_of_some_services_says_nothing_of_others():
    slices, kept = Slices(), slice_at("http://10.0.0.1:80", "kept-1", "kept")
    for each in (kept, slice_at("http://10.0.0.2:80", "s-1"), slice_at("http://10.0.0.3:80", "s-2")):
        slices.put(each)
    later = slice_at("http://10.0.0.4:80", "s-3")
    assert slices.reset([later], lambda owner: owner == ("ns", "s")) == {("ns", "s")}
    assert (slices.of(("ns", "kept")), slices.of(("ns", "s"))) == ([kept], [later])


def test_a_slice_that_changes_its_service_changes_both():
    slices = Slices()
    slices.put(slice_at("http://10.0.0.1:80", "a", "one"))
    assert slices.put(slice_at("http://10.0.0.1:80", "a", "other")) == {("ns", "one"), ("ns", "other")}
    assert slices.of(("ns", "one")) == []


async def test_the_queue_grows_and_shrinks_with_the_replicas():
    cluster = Cluster()
    async with upstream(echo) as one, upstream(echo) as other, gateway(cluster, named()) as world:
        assert world.service.backlog.depth == 64
        cluster.all_slices(slice_at(one.url, "s-1"), slice_at(other.url, "s-2"))
        await until(lambda: world.service.backlog.depth == 128)
        cluster.all_slices(slice_at(one.url, "s-1"))
        await until(lambda: world.service.backlog.depth == 64)


# ---------------------------------------------------------------- Services that opt in


@contextlib.asynccontextmanager
async def opted_in():
    """A Service that opted in, with a depth of 7 and one replica, which is ready."""
    cluster = Cluster()
    async with upstream(echo) as replica, gateway(cluster, open_to("ns")) as world:
        cluster.all_slices(slice_at(replica.url))
        cluster.all_services(annotated(depth="7"))
        front = world.gateway.front
        await until(lambda: front.services and front.services[0].is_ready)
        yield cluster, replica, world


async def test_a_service_that_opts_in_is_served_and_drains_when_it_no_longer_does():
    cluster, held = Cluster(), Held()
    async with upstream(held) as replica, gateway(cluster, open_to("ns")) as world, world.client() as client:
        assert (await world.admin("/readyz")).text == "the cluster has not told its services yet\n"
        cluster.all_services(annotated(gateway=""))
        await until(lambda: world.gateway.front.is_synced)
        assert (await world.admin("/readyz")).status_code == 200
        assert (await client.get("/")).status_code == 404
        cluster.all_slices(slice_at(replica.url))
        cluster.put_service(annotated(limit="1"))
        front = world.gateway.front
        await until(lambda: front.services and front.services[0].is_ready)
        (served,) = front.services
        assert (served.settings.name, served.settings.limit) == ("ns.s", 1)
        waiting = [asyncio.create_task(client.get("/")) for _ in range(3)]
        await until(lambda: served.backlog.queued == 2)
        cluster.put_service(annotated(gateway=""))
        await until(lambda: not front.services)
        assert (await client.get("/")).status_code == 404
        cluster.all_slices()  # its endpoints go with it; who waits is served by those that still answer
        await asyncio.sleep(0.5)
        held.go.set()
        assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {200}
        await until(lambda: not replica.connections)


async def test_other_settings_count_when_a_replica_is_warm_under_them_and_nobody_is_refused():
    async with opted_in() as (cluster, replica, world), world.client() as client:
        front = world.gateway.front
        told = []

        async def ask():
            while front.services[0].settings.depth != 9:
                told.append((await client.get("/")).status_code)

        asking = asyncio.create_task(ask())
        replica.ready = False
        cluster.put_service(annotated(depth="9"))
        await asyncio.sleep(0.3)
        assert front.services[0].settings.depth == 7
        replica.ready = True
        await asyncio.wait_for(asking, 40)
        assert set(told) == {200}
        assert await answers(client) == [200] * 12


async def test_annotations_that_never_rest_begin_a_service_now_and_then_and_the_last_word_counts(monkeypatch):
    """Each start warms up every replica: who wrote an annotation all the time held up everybody's requests."""
    monkeypatch.setattr(discovering, "SETTLE_S", 3600.0)  # longer than a busy machine takes to tell all of them
    begun = []
    monkeypatch.setattr(discovering, "Service", lambda settings: begun.append(settings) or Service(settings))
    async with opted_in() as (cluster, _, world), world.client() as client:
        front = world.gateway.front
        for depth in range(8, 108):
            cluster.put_service(annotated(depth=str(depth)))
            cluster.put_service(annotated(gateway="") if depth % 10 == 0 else annotated(depth=str(depth)))
            await asyncio.sleep(0)
        assert len(begun) == 1
        monkeypatch.setattr(discovering, "SETTLE_S", 0.3)
        await until(lambda: front.services and front.services[0].settings.depth == 107)
        assert len(begun) <= 4
        assert await answers(client) == [200] * 12


async def test_a_service_that_leaves_before_its_turn_does_not_come(monkeypatch):
    monkeypatch.setattr(discovering, "SETTLE_S", 3600.0)
    async with opted_in() as (cluster, _, world):
        front, found = world.gateway.front, world.gateway.discovery
        cluster.put_service(annotated(depth="8"))
        await until(lambda: found._settling)
        cluster.put_service(annotated(gateway=""))
        await until(lambda: not front.services)
        assert not found._settling


async def test_a_request_whose_service_changes_while_its_body_comes_is_served_by_the_next():
    async with opted_in() as (cluster, _, world):
        front = world.gateway.front
        (first,) = front.services
        reader, writer = await world.connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhel")
        await until(lambda: any(each._newest is not None for each in world.gateway.server.connections))
        cluster.put_service(annotated(depth="9"))
        await until(lambda: first.is_closed)
        writer.write(b"lo")
        async with asyncio.timeout(20):
            assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
        writer.close()


@pytest.mark.parametrize(
    ("services", "refused"),
    [
        pytest.param(
            [annotated(kind="plain")], "kind: is 'plain'; write one of list, oip, openai, pass", id="no kind of ours"
        ),
        pytest.param(
            [annotated(max_batch="many")],
            "max-batch: is 'many'; write a whole number from 1 to 1000000",
            id="no number",
        ),
        pytest.param(
            [annotated(replicas="http://a")],
            "cardwise.dev/gateway-replicas: nothing is set by this",
            id="not for them to say",
        ),
        pytest.param(
            [annotated(), annotated("late", made="2026-02-01T00:00:00Z")],
            "/ of any host is served by ns.s; write cardwise.dev/gateway-hosts",
            id="a path that is taken",
        ),
        pytest.param(
            [annotated(hosts="a.example, b.example"), annotated("late", made="2026-02-01T00:00:00Z", path="/x")],
            "/x of any host is served by ns.s",
            id="a path below one that is taken",
        ),
    ],
)
async def test_a_service_that_cannot_be_served_is_refused_with_words_and_counted(services, refused):
    cluster = Cluster()
    async with gateway(cluster, open_to("ns")) as world:
        cluster.all_services(*reversed(services))
        discovery = world.gateway.discovery
        await until(lambda: discovery.refused)
        (why,) = discovery.refused.values()
        assert why.startswith(refused)
        assert number((await world.admin("/metrics")).text, "cardwise_gateway_services_refused") == 1
        assert len(world.gateway.front.services) == len(services) - 1


async def test_nobody_takes_by_annotation_what_a_service_of_the_file_is_asked():
    cluster = Cluster()
    settings = {**named(), **open_to("*")}
    async with gateway(cluster, settings) as world:
        cluster.all_services(annotated("other", hosts="a.example"), annotated("elsewhere", kind="oip"))
        await until(lambda: len(world.gateway.discovery.refused) == 2)
        assert [each.settings.name for each in world.gateway.front.services] == ["s"]
        assert sorted(cluster.followed) == [("services", ""), ("slices", "")]


async def test_a_service_that_the_file_names_is_the_files_whatever_its_annotations():
    cluster = Cluster()
    async with gateway(cluster, {**named(), **open_to("ns")}) as world:
        cluster.all_services(annotated("s", kind="oip"), annotated("t", kind="nonsense"))
        await until(lambda: world.gateway.discovery.refused)
        assert list(world.gateway.discovery.refused) == [("ns", "t")]
        assert [each.settings.name for each in world.gateway.front.services] == ["s"]


PATHS = st.lists(st.sampled_from(["a", "b", "v2", ""]), max_size=6).map(lambda parts: "/" + "/".join(parts))
SERVED = st.builds(
    lambda kind, path, hosts: msgspec.convert(
        {"name": "x", "kind": kind, "path": path, "hosts": hosts, "model": path.strip("/"), "replicas": ["http://x:1"]},
        ServiceSettings,
    ),
    st.sampled_from(["list", "pass", "oip", "openai"]),
    PATHS,
    st.lists(st.sampled_from(["h", "i"]), max_size=2),
)


@given(st.lists(SERVED, max_size=8), SERVED)
def test_whoever_meets_a_route_is_found_near_it(others, mine):
    """Not held against all others, so that a thousand Services are not a million comparisons at each change."""
    taken = Taken()
    for i, each in enumerate(others):
        taken.add(msgspec.structs.replace(each, name=str(i)))
    found = {name for name, route in taken.near(route_of(mine)) if route.meets(route_of(mine))}
    assert found == {str(i) for i, each in enumerate(others) if route_of(each).meets(route_of(mine))}


async def test_services_are_told_apart_by_model_and_by_host():
    cluster = Cluster()
    async with upstream(echo) as one, upstream(echo) as other, gateway(cluster, open_to("ns")) as world:
        cluster.all_slices(slice_at(one.url, "a-1", "a"), slice_at(other.url, "b-1", "b"))
        cluster.all_services(annotated("a", hosts="a.example"), annotated("b", hosts="b.example"))
        front = world.gateway.front
        await until(lambda: len(front.services) == 2 and all(each.is_ready for each in front.services))
        async with world.client() as client:
            assert await answers(client, 2, headers={"host": "a.example"}) == [200] * 2
            assert await answers(client, 3, headers={"host": "b.example"}) == [200] * 3
            assert await answers(client, 1, headers={"host": "c.example"}) == [404]
        assert (len(one.asked), len(other.asked)) == (2, 3)
