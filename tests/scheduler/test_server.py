"""The scheduler's doors: what cannot be answered is said in words, whoever asks; over HTTP on loopback."""

from __future__ import annotations

import json
import socket

import pytest
from aiohttp import ClientSession, web

from cardwise.adapters.kube.port import All
from cardwise.adapters.listening import serve
from cardwise.adapters.watching import Watching
from cardwise.errors import UserError
from cardwise.scheduler.binder import Binder
from cardwise.scheduler.extender import Extender
from cardwise.scheduler.server import Parts, Server
from tests.builders import node
from tests.scheduler.fake_cluster import FakeCluster, books, node_object, pod

VERBS = ["/filter", "/prioritize", "/bind"]


@pytest.fixture
def api():
    return FakeCluster(pod("there"))


@pytest.fixture
async def door(api):
    """Asks a server over one node; the status and the text of the answer."""
    ledger = books()
    watching, extender = Watching(ledger), Extender(ledger, lambda: 0.0)
    watching.hear_node(All((node_object(node("n0")),)))
    watching.hear_pod(All(()))
    server = Server(Parts(api, ledger, watching, extender, Binder(api, ledger, extender, lambda: None), lambda: None))
    extender_door, port = await serve(server.extender_app(), "127.0.0.1", 0, None)
    webhook_door, webhook_port = await serve(server.webhook_app(), "127.0.0.1", 0, None)
    async with ClientSession() as session:

        async def ask(path, body=None):
            base = f"http://127.0.0.1:{webhook_port if path == '/admit' else port}"
            asked = session.get(base + path) if body is None else session.post(base + path, data=body)
            async with asked as answer:
                return answer.status, await answer.text()

        yield ask
    await extender_door.cleanup()
    await webhook_door.cleanup()


async def test_a_pod_that_is_there_is_explained(door):
    status, text = await door("/explain/ns/there")
    assert (status, json.loads(text)["nodes_fit"]) == (200, 1)


async def test_a_pod_that_is_not_there_is_not_found_and_said_so(door):
    assert await door("/explain/ns/nobody") == (404, "pods nobody not found\n")


async def test_a_pod_that_asks_for_nonsense_is_told_what_to_write(door, api):
    api.create(pod("wrong", {"nvidia.com/gpumem": "0"}))
    status, text = await door("/explain/ns/wrong")
    assert (status, "write 4096 (MiB)" in text) == (400, True)


async def test_an_api_server_that_is_away_is_told(door, api):
    api.dead = True
    assert await door("/explain/ns/there") == (502, "no answer in time\n")


@pytest.mark.parametrize("path", VERBS)
@pytest.mark.parametrize(
    "body", [b"", b"hello", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"Pod": ' + b"[" * 100_000, b'{"PodName": 1}']
)
async def test_a_question_that_cannot_be_read_is_answered_with_what_is_wrong(door, path, body):
    status, text = await door(path, body)
    assert (status, text[:4], "Traceback" in text) == (400, "not ", False)


async def test_a_pod_that_nests_deep_is_filtered_like_any_other(door):
    deep = b"[" * 10_000 + b"]" * 10_000
    made = b'{"Pod": {"metadata": {"name": "a", "managedFields": %s}, "spec": {}}, "NodeNames": ["n0"]}' % deep
    status, text = await door("/filter", made)
    assert (status, json.loads(text)["NodeNames"]) == (200, ["n0"])


@pytest.mark.parametrize("body", [b"", b"hello", b"[" * 100_000])
async def test_the_webhook_answers_what_it_cannot_read_with_a_review_that_denies(door, body):
    status, text = await door("/admit", body)
    assert (status, json.loads(text)["response"]["allowed"]) == (200, False)


@pytest.mark.parametrize(
    "host", ["a\0b", "a" * 64, "a..b", "no.such.host.invalid"], ids=["NUL", "a long label", "an empty label", "unknown"]
)
async def test_a_host_that_cannot_be_listened_on_is_told_with_what_to_do(host):
    with pytest.raises(UserError, match=r"^cannot listen on .*:0: .*; choose another host or port$"):
        await serve(web.Application(), host, 0, None)


async def test_a_port_that_is_taken_is_told_with_what_to_do():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"127\.0\.0\.1:{port}: .*; choose another host or port$"):
            await serve(web.Application(), "127.0.0.1", port, None)
