"""The client and the feed against a server on loopback that speaks the API server's dialect."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from aiohttp import web
from hypothesis import given

from cardwise.adapters.kube import feed
from cardwise.adapters.kube.client import connect
from cardwise.adapters.kube.port import All, Binding, Gone, LeaseRecord, Listing, Lost, Put, Resumed
from cardwise.adapters.kube.shallow import shallow
from cardwise.errors import ClusterError, ConflictError, ExpiredError, NotFoundError, UserError

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
clusters: [{{name: here, cluster: {{server: "{server}"}}}}]
contexts: [{{name: here, context: {{cluster: here, user: me}}}}]
users: [{{name: me, user: {{token: secret}}}}]
"""


@dataclass
class ApiServer:
    """Answers from a script. watches: what each watch does, in turn; the last one stays open and silent.

    since: what every watch from a point in history does, in place of that.
    """

    pages: dict[str, list] = field(default_factory=dict)
    watches: list = field(default_factory=list)
    since: dict[str, list] = field(default_factory=dict)
    answer: object = None
    seen: list = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request):
        body = await request.json() if request.can_read_body else None
        self.seen.append((request.method, request.path, dict(request.query), body, request.content_type))
        if request.query.get("watch"):
            return await self._watch(request)
        if callable(self.answer):
            return await self.answer(request)
        if self.answer is not None:
            return self.answer
        return self._list(request)

    def _list(self, request):
        pages = self.pages[request.path]
        page = int(request.query.get("continue", 0))
        more = str(page + 1) if page + 1 < len(pages) else ""
        return web.json_response({"metadata": {"resourceVersion": "10", "continue": more}, "items": pages[page]})

    async def _watch(self, request):
        turn = self.watches.pop(0) if self.watches else []
        script = self.since.get(request.query["resourceVersion"], turn)
        if isinstance(script, int):
            return status(script, "too old resource version")
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        for part in script:
            if part is CLOSE:
                return answer
            if part is DROP:
                request.transport.abort()
                return answer
            await answer.write(part)
            await asyncio.sleep(0.01)
        await self.stop.wait()
        return answer

    @property
    def watched(self):
        """Points in history from which it was asked to watch."""
        return [query["resourceVersion"] for _, _, query, _, _ in self.seen if query.get("watch")]

    @property
    def lists(self):
        return sum(1 for method, _, query, _, _ in self.seen if method == "GET" and not query.get("watch"))


CLOSE, DROP = object(), object()


def status(code, message, **more):
    return web.json_response({"kind": "Status", "code": code, "message": message, **more}, status=code)


def pod(name="a", version="1", node="", **more):
    metadata = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": version}
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {}, **more}


def change(kind, item):
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def error(code):
    return change("ERROR", {"kind": "Status", "code": code, "message": "it broke"})


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    monkeypatch.setattr(feed, "BACKOFF_FIRST_S", 0.001)


@pytest.fixture
async def api():
    server = ApiServer(pages={"/api/v1/pods": [[]], "/api/v1/nodes": [[]]})
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield server
    server.stop.set()
    await runner.cleanup()


@pytest.fixture
async def client(api, tmp_path):
    path = tmp_path / "kubeconfig"
    path.write_text(KUBECONFIG.format(server=api.url))
    async with connect(path) as connected:
        yield connected


async def events(client, count, *, nodes=False, quiet=(Listing, Resumed)):
    """The first so many events, without those of the quiet kinds."""
    told = []
    stream = client.follow_nodes() if nodes else client.follow_pods()
    async with asyncio.timeout(40), contextlib.aclosing(stream):
        async for event in stream:
            if not isinstance(event, quiet):
                told.append(event)
            if len(told) == count:
                return told
    return told


def words(told):
    """Events as text: "+a b" for a list, "a@2" for a change, "-a" for a delete, "?" for a break, "!" for its end."""
    said = []
    for event in told:
        match event:
            case All(objects):
                said.append("+" + " ".join(each.metadata.name for each in objects))
            case Put(each):
                said.append(f"{each.metadata.name}@{each.metadata.resource_version}")
            case Gone(each):
                said.append(f"-{each.metadata.name}")
            case Lost():
                said.append("?")
            case Listing():
                said.append("…")
            case Resumed():
                said.append("!")
    return said


# ---------------------------------------------------------------- list and watch


async def test_all_pages_of_a_list_are_one_truth(client, api):
    api.pages["/api/v1/pods"] = [[pod("a"), pod("b")], [pod("c")], []]
    assert words(await events(client, 1)) == ["+a b c"]
    assert [query.get("continue") for _, _, query, _, _ in api.seen] == [None, "1", "2"]


async def test_only_pods_that_have_not_ended_are_asked_for(client, api):
    await events(client, 1)
    assert api.seen[0][2]["fieldSelector"] == "status.phase!=Succeeded,status.phase!=Failed"


async def test_nodes_are_followed_without_a_selector(client, api):
    api.pages["/api/v1/nodes"] = [[{"metadata": {"name": "n0"}}]]
    assert words(await events(client, 1, nodes=True)) == ["+n0"]
    assert "fieldSelector" not in api.seen[0][2]


@pytest.mark.parametrize(
    ("namespace", "services", "path", "selector"),
    [
        ("ns", (), "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices", None),
        (
            "ns",
            ("b", "a"),
            "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices",
            "kubernetes.io/service-name in (a,b)",
        ),
        ("", (), "/apis/discovery.k8s.io/v1/endpointslices", None),
    ],
    ids=["of a namespace", "of some of its services", "of all"],
)
async def test_endpoint_slices_are_asked_for_where_and_of_whom_it_is_told(
    client, api, namespace, services, path, selector
):
    api.pages[path] = [[{"metadata": {"name": "s", "namespace": "ns"}, "addressType": "IPv4", "endpoints": None}]]
    api.watches = [[change("BOOKMARK", {"metadata": {"resourceVersion": "12"}}), CLOSE]]
    async with asyncio.timeout(40), contextlib.aclosing(client.follow_slices(namespace, services)) as stream:
        async for event in stream:
            if isinstance(event, All):
                assert [each.metadata.name for each in event.objects] == ["s"]
                break
    assert api.seen[0][2].get("labelSelector") == selector


async def test_services_are_followed_with_their_annotations(client, api):
    annotations = {"cardwise.dev/gateway": "main", "other.example/kept": "no"}
    path = "/api/v1/namespaces/ns/services"
    api.pages[path] = [[{"metadata": {"name": "s", "annotations": annotations}, "spec": {"clusterIP": "None"}}]]
    async with asyncio.timeout(40), contextlib.aclosing(client.follow_services("ns")) as stream:
        async for event in stream:
            if isinstance(event, All):
                assert [each.metadata.annotations for each in event.objects] == [{"cardwise.dev/gateway": "main"}]
                break


@pytest.mark.parametrize("name", ["a/b", "a,b", "A", ""])
def test_what_is_no_name_is_not_put_into_a_path(client, name):
    with pytest.raises(NotFoundError):
        client.follow_slices("ns", (name,))


async def test_changes_are_told_in_order_and_bookmarks_are_not(client, api):
    api.watches = [
        [
            change("ADDED", pod("a", "11")),
            change("BOOKMARK", {"metadata": {"resourceVersion": "12"}}),
            change("MODIFIED", pod("a", "13", "n0")),
            change("DELETED", pod("a", "14")),
        ]
    ]
    told = await events(client, 4)
    assert words(told) == ["+", "a@11", "a@13", "-a"]
    assert told[2].object.spec.node_name == "n0"


async def test_a_list_is_announced_before_it_begins(client, api):
    told = await events(client, 2, quiet=())
    assert words(told) == ["…", "+"]


async def test_an_event_that_comes_in_pieces_is_put_together(client, api):
    line = change("ADDED", pod("a", "11"))
    api.watches = [[line[:7], line[7:-1], b"\n" + line[:3], line[3:] + line]]
    assert words(await events(client, 4)) == ["+", "a@11", "a@11", "a@11"]


async def test_a_watch_that_ends_in_peace_goes_on_where_it_ended(client, api):
    bookmark = change("BOOKMARK", {"metadata": {"resourceVersion": "17"}})
    api.watches = [[bookmark, CLOSE], [change("ADDED", pod("a", "18"))]]
    assert words(await events(client, 2)) == ["+", "a@18"]
    assert (api.watched, api.lists) == (["10", "17"], 1)


async def test_a_dropped_connection_is_told_and_goes_on_where_it_broke(client, api):
    api.watches = [[change("ADDED", pod("a", "11")), DROP], [change("ADDED", pod("b", "12"))]]
    assert words(await events(client, 4)) == ["+", "a@11", "?", "b@12"]
    assert (api.watched, api.lists) == (["10", "11"], 1)


async def test_a_stream_that_goes_on_says_so_though_nothing_happens(client, api):
    """Else who shows a broken watch would show it until something changes, which in a quiet cluster may be hours."""
    api.watches = [[DROP], 503, [b"\n"]]
    assert words(await events(client, 4, quiet=(Listing,))) == ["+", "?", "?", "!"]


async def test_a_bookmark_is_read_as_the_api_server_writes_it(client, api):
    """Of a pod it has null in place of containers. Source: KEP-956, and kube-apiserver 1.36."""
    empty = {"kind": "Pod", "apiVersion": "v1", "spec": {"containers": None}, "status": {}}
    api.watches = [
        [change("BOOKMARK", {**empty, "metadata": {"resourceVersion": "17"}}), CLOSE],
        [change("ADDED", pod("a", "18"))],
    ]
    assert words(await events(client, 2, quiet=(Listing,))) == ["+", "a@18"]
    assert (api.watched, api.lists) == (["10", "17"], 1)


async def test_a_silent_connection_is_dead_after_a_while(client, api, monkeypatch):
    monkeypatch.setattr(feed, "IDLE_S", 0.1)
    api.since = {"10": [change("ADDED", pod("a", "11"))], "11": [change("ADDED", pod("b", "12"))]}
    told = []
    async with asyncio.timeout(60), contextlib.aclosing(client.follow_pods()) as stream:
        while words(told)[-1:] != ["b@12"]:
            told.append(await anext(stream))
    said = [word for word in words(told) if word not in {"…", "!"}]
    assert said[-2] == "?"
    assert [word for word in said if word != "?"] == ["+", "a@11", "b@12"]  # a busy server seems dead once more


@pytest.mark.parametrize("gone", [410, [error(410)]], ids=["as an HTTP status", "as an event"])
async def test_a_forgotten_history_is_listed_again(client, api, gone):
    api.watches = [gone, [change("ADDED", pod("b", "12"))]]
    assert words(await events(client, 5, quiet=())) == ["…", "+", "…", "+", "b@12"]


async def test_a_history_that_is_forgotten_again_and_again_is_not_asked_for_in_a_rush(client, api, monkeypatch):
    waits = []
    monkeypatch.setattr(feed, "backoff_s", lambda failures: waits.append(failures) or 0.0)
    api.watches = [410, 410, 410]
    await events(client, 4)
    assert waits == [1, 2, 3]


async def test_an_error_in_the_watch_is_told_and_goes_on_from_the_same_point(client, api):
    api.watches = [[error(500)], [change("ADDED", pod("b", "12"))]]
    told = await events(client, 3)
    assert words(told) == ["+", "?", "b@12"]
    assert (told[1].why, api.watched) == ("it broke", ["10", "10"])


async def test_an_unreadable_event_breaks_the_watch_not_the_feed(client, api):
    api.watches = [[b"nonsense\n"], [change("ADDED", pod("b", "12"))]]
    told = await events(client, 3)
    assert words(told) == ["+", "?", "b@12"]
    assert told[1].why.startswith("GET /api/v1/pods: unreadable event: ")


DEEP = "[" * 5000 + "]" * 5000


def nested(item):
    """The object's JSON with something in it that is nested deeper than decoders go."""
    return json.dumps({**item, "more": "DEEP"}).replace('"DEEP"', DEEP)


async def test_a_pod_that_nests_deep_hides_no_other_of_its_list_and_is_read_itself(client, api):
    items = ",".join([nested(pod("a", node="n0")), json.dumps(pod("b"))])
    text = f'{{"metadata": {{"resourceVersion": "10"}}, "items": [{items}]}}'
    api.answer = web.Response(text=text, content_type="application/json")
    (told,) = await events(client, 1)
    assert [(each.metadata.name, each.spec.node_name) for each in told.objects] == [("a", "n0"), ("b", "")]


async def test_a_pod_that_nests_deep_breaks_no_watch(client, api):
    first = f'{{"type": "ADDED", "object": {nested(pod("a", "11"))}}}\n'.encode()
    api.watches = [[first, change("ADDED", pod("b", "12"))]]
    told = await events(client, 3)
    assert [each.object.metadata.name for each in told[1:]] == ["a", "b"]


async def test_a_pod_that_nests_deep_can_be_read_alone(client, api):
    api.answer = web.Response(text=nested(pod("a")), content_type="application/json")
    assert (await client.get_pod("ns", "a")).metadata.name == "a"


@pytest.mark.parametrize("text", ['{"metadata": ' + "[" * 5000, DEEP], ids=["cut off", "no pod"])
async def test_an_answer_that_nests_deep_and_is_no_pod_is_tried_again(client, api, text):
    api.answer = web.Response(text=text, content_type="application/json")
    with pytest.raises(ClusterError, match="the API server's answer is not a Pod") as caught:
        await client.get_pod("ns", "a")
    assert caught.value.retry


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(['"', "\\", "[", '"}', '\\"[']),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=3), each, max_size=3),
)


@given(JSON, st.booleans())
def test_only_what_lies_too_deep_is_left_out(value, ascii_only):
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert json.loads(shallow(text)) == value
    wrapped = b'{"deep": ' + b"[" * 64 + b"{" + b'"]": ' + text + b"}" + b"]" * 64 + b', "kept": ' + text + b"}"
    assert json.loads(shallow(wrapped))["kept"] == value
    assert b"{" not in shallow(wrapped).partition(b', "kept"')[0][1:]


async def test_a_list_that_fails_is_told_and_tried_again(client, api):
    async def first_fails(request):
        api.answer = None
        return status(503, "etcd is away")

    api.answer = first_fails
    told = await events(client, 2)
    assert words(told) == ["?", "+"]
    assert told[0].why == "GET /api/v1/pods: 503: etcd is away"


async def test_a_list_that_is_no_list_is_told_and_tried_again(client, api):
    async def first_is_a_page(request):
        api.answer = None
        return web.Response(text="<html>log in first</html>")

    api.answer = first_is_a_page
    told = await events(client, 2)
    assert words(told) == ["?", "+"]
    assert told[0].why.startswith("the API server's answer is not a PodList")


async def test_annotations_that_nobody_reads_are_not_kept(client, api):
    told = pod("a")
    told["metadata"]["annotations"] = {"example.com/whole-manifest": "x", "cardwise.dev/mix": "true"}
    api.pages["/api/v1/pods"] = [[told]]
    (seen,) = await client.list_pods()
    assert seen.metadata.annotations == {"cardwise.dev/mix": "true"}


async def test_what_is_there_now_can_be_asked_for_once(client, api):
    api.pages["/api/v1/pods"] = [[pod("a")], [pod("b")]]
    assert [each.name for each in await client.list_pods()] == ["ns/a", "ns/b"]


# ---------------------------------------------------------------- one answer


@pytest.mark.parametrize(
    ("code", "kind", "retry"),
    [
        (400, ClusterError, False),
        (403, ClusterError, False),
        (404, NotFoundError, False),
        (409, ConflictError, False),
        (410, ExpiredError, False),
        (429, ClusterError, True),
        (500, ClusterError, True),
        (503, ClusterError, True),
    ],
)
async def test_a_status_becomes_an_error_of_ours_that_says_whether_to_try_again(client, api, code, kind, retry):
    api.answer = status(code, "no way")
    with pytest.raises(ClusterError, match=rf"^GET /api/v1/namespaces/ns/pods/a: {code}: no way$") as caught:
        await client.get_pod("ns", "a")
    assert (type(caught.value), caught.value.retry) == (kind, retry)


async def test_an_error_that_is_no_status_is_shown_as_it_came(client, api):
    api.answer = web.Response(status=502, text="<h1>bad gateway</h1>")
    with pytest.raises(ClusterError, match="502: <h1>bad gateway</h1>"):
        await client.get_pod("ns", "a")


async def test_an_answer_that_is_no_pod_is_tried_again(client, api):
    api.answer = web.Response(text="hello")
    with pytest.raises(ClusterError, match="the API server's answer is not a Pod") as caught:
        await client.get_pod("ns", "a")
    assert caught.value.retry


async def test_no_answer_in_time_is_tried_again(client, api):
    async def silence(request):
        await api.stop.wait()
        return web.Response()

    api.answer = silence
    with pytest.raises(ClusterError, match=r"^GET /x: no answer in time") as caught:
        await client.request("GET", "/x", timeout_s=0.1)
    assert caught.value.retry


async def test_an_answer_that_trickles_is_late_as_well(client, api):
    """The leader counts on the end of every write, see ``adapters/kube/leader.py``."""

    async def trickle(request):
        answer = web.StreamResponse()
        await answer.prepare(request)
        for _ in range(40):
            await answer.write(b" ")
            await asyncio.sleep(0.05)
        return answer

    api.answer = trickle
    with pytest.raises(ClusterError, match=r"^GET /x: no answer in time"):
        await client.request("GET", "/x", timeout_s=0.2)


async def test_a_server_that_is_not_there_is_tried_again(tmp_path):
    path = tmp_path / "kubeconfig"
    path.write_text(KUBECONFIG.format(server="http://127.0.0.1:1"))
    async with connect(path) as client:
        with pytest.raises(ClusterError) as caught:
            await client.get_pod("ns", "a")
    assert caught.value.retry


# ---------------------------------------------------------------- writes


async def test_a_binding_puts_node_annotations_and_labels_on_the_pod_in_one_write(client, api):
    api.answer = web.json_response({"kind": "Status", "status": "Success"}, status=201)
    await client.bind(Binding("ns", "a", "uid-a", "n0", {"cardwise.dev/alloc": "{}"}, {"cardwise.dev/bound": "true"}))
    assert api.seen == [
        (
            "POST",
            "/api/v1/namespaces/ns/pods/a/binding",
            {},
            {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {
                    "name": "a",
                    "namespace": "ns",
                    "uid": "uid-a",
                    "annotations": {"cardwise.dev/alloc": "{}"},
                    "labels": {"cardwise.dev/bound": "true"},
                },
                "target": {"apiVersion": "v1", "kind": "Node", "name": "n0"},
            },
            "application/json",
        )
    ]


async def test_annotations_are_merged_and_none_removes_one(client, api):
    api.answer = web.json_response({})
    await client.annotate_node("n0", {"a": "1", "b": None})
    assert api.seen[0][:2] == ("PATCH", "/api/v1/nodes/n0")
    assert api.seen[0][3:] == ({"metadata": {"annotations": {"a": "1", "b": None}}}, "application/merge-patch+json")


async def test_a_condition_is_merged_by_its_type(client, api):
    api.answer = web.json_response({})
    await client.set_node_condition("n0", {"type": "T", "status": "True"})
    assert api.seen[0][:2] == ("PATCH", "/api/v1/nodes/n0/status")
    assert api.seen[0][3:] == (
        {"status": {"conditions": [{"type": "T", "status": "True"}]}},
        "application/strategic-merge-patch+json",
    )


async def test_an_event_is_posted_to_its_namespace(client, api):
    api.answer = web.json_response({}, status=201)
    await client.post_event({"kind": "Event"}, "default")
    assert api.seen[0][:2] == ("POST", "/api/v1/namespaces/default/events")


LEASES = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"
LEASE = {
    "metadata": {"resourceVersion": "8"},
    "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15, "leaseTransitions": 2, "renewTime": "now"},
}


@pytest.mark.parametrize(
    ("version", "method", "path"),
    [("", "POST", LEASES), ("7", "PUT", f"{LEASES}/l")],
    ids=["created", "replaced in the version that was read"],
)
async def test_a_lease_is_written(client, api, version, method, path):
    api.answer = web.json_response(LEASE)
    written = await client.write_lease("ns", "l", LeaseRecord("me", 15, 2, "now", version))
    assert written == LeaseRecord("me", 15, 2, "now", "8")
    assert api.seen[0][:2] == (method, path)
    assert api.seen[0][3]["metadata"].get("resourceVersion", "") == version
    assert api.seen[0][3]["spec"] == LEASE["spec"]


async def test_a_lease_that_nobody_holds_is_read_as_such(client, api):
    api.answer = web.json_response({"metadata": {"resourceVersion": "8"}, "spec": {"holderIdentity": None}})
    assert await client.read_lease("ns", "l") == LeaseRecord("", 0, 0, "", "8")


# ---------------------------------------------------------------- the way to a cluster

NO_CONTEXT = KUBECONFIG.format(server="http://x").replace("current-context: here", "")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "not found"),
        ("", ""),
        ("[1, 2]", ""),
        ("{a: [", ""),
        ("[" * 5000, "recursion"),
        (f"a: {'9' * 5000}", "digits"),
        ("apiVersion: v1\nkind: Config\n", "clusters"),
        (NO_CONTEXT, "context"),
        (KUBECONFIG.format(server="http://x").replace("user: me}", "user: you}"), "you"),
        (KUBECONFIG.format(server="http://x").replace(", user: me}", "}"), "user"),
        (KUBECONFIG.format(server="http://x").replace("token: secret", "client-certificate-data: '!'"), ""),
        (KUBECONFIG.format(server="http://x:port"), ""),
    ],
    ids=[
        "missing",
        "empty",
        "a list",
        "no YAML",
        "lists in lists",
        "5000 digits",
        "no clusters",
        "no context",
        "unknown user",
        "no user",
        "no certificate",
        "no URL",
    ],
)
def test_a_kubeconfig_that_leads_nowhere_is_the_users_turn(tmp_path, text, told):
    path = tmp_path / "kubeconfig"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=rf"{re.escape(told)}.*(--kubeconfig FILE|--context NAME)"):
        connect(path)


def test_without_a_word_the_users_own_kubeconfig_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="nowhere not found; set KUBECONFIG or pass --kubeconfig FILE"):
        connect()


# ---------------------------------------------------------------- names


ASKING = {
    "get_pod": lambda client, name: client.get_pod("ns", name),
    "get_pod of a namespace": lambda client, name: client.get_pod(name, "a"),
    "get_local_pod": lambda client, name: client.get_local_pod("ns", name),
    "get_node": lambda client, name: client.get_node(name),
    "bind": lambda client, name: client.bind(Binding("ns", name, "u", "n0", {}, {})),
    "bind in a namespace": lambda client, name: client.bind(Binding(name, "a", "u", "n0", {}, {})),
    "annotate_node": lambda client, name: client.annotate_node(name, {}),
    "set_node_condition": lambda client, name: client.set_node_condition(name, {}),
    "post_event": lambda client, name: client.post_event({}, name),
    "list_leases": lambda client, name: client.list_leases(name, ""),
    "read_lease": lambda client, name: client.read_lease("ns", name),
    "read_lease of a namespace": lambda client, name: client.read_lease(name, "a"),
    "write_lease": lambda client, name: client.write_lease("ns", name, LeaseRecord(version="1")),
    "write_lease to a namespace": lambda client, name: client.write_lease(name, "a", LeaseRecord()),
}


@pytest.mark.parametrize("ask", ASKING.values(), ids=ASKING)
@pytest.mark.parametrize("name", ["../../nodes", "..", ".", "", "a/b", "a%2Fb", "a?x=1", "a#b", "a\n", "A", "x" * 254])
async def test_what_is_no_name_never_becomes_part_of_a_path(client, api, ask, name):
    with pytest.raises(NotFoundError, match="that is no name"):
        await ask(client, name)
    assert api.seen == []


async def test_the_pods_of_what_is_no_node_are_not_asked_for(client):
    with pytest.raises(NotFoundError, match=r"node 'n0,metadata\.name=a': there is none"):
        client.follow_pods_on("n0,metadata.name=a")
