"""The page in a real browser, beyond what `cardwise up` shows: a thousand nodes, changes, hostile names, the keyboard.

Sources are states as the scheduler tells them, made by hand; the server, the script and the browser are real.
`CARDWISE_SHOT=FILE.png` keeps a picture of the thousand nodes beside it, light and dark.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import aiohttp
import pytest

from cardwise.scheduler import overview
from cardwise.web.page import Frame, serve_page
from tests.e2e.axe import violations
from tests.e2e.browser import browser

HOSTILE = "<img src=x onerror=document.title='broken'>\"'&amp;</script>"
SLICE_MIB, CARD_MIB = 4096, 24576


def card(uuid, slices=0, service="default/chat"):
    """A card with some slices of 4096 MiB and 20 %."""
    held = [
        {
            "pod": f"{service}-{uuid}-{i}",
            "service": service,
            "container": "main",
            "memory_mib": SLICE_MIB,
            "memory_lent_mib": 0,
            "compute_pct": 20,
            "whole": False,
        }
        for i in range(slices)
    ]
    return {
        "uuid": uuid,
        "model": "A10",
        "memory_total_mib": CARD_MIB,
        "memory_free_mib": CARD_MIB - slices * SLICE_MIB,
        "memory_lent_mib": 0,
        "memory_lent_free_mib": 0,
        "compute_free_pct": 100.0 - 20 * slices,
        "compute_used_share": None,
        "healthy": True,
        "slices": held,
    }


def node(name, *cards, fenced=False):
    return {"name": name, "fenced": fenced, "cards": list(cards)}


def pending(pod="default/large-0", service="default/large", why="0/2 nodes fit: 2 too little card memory"):
    return {
        "pod": pod,
        "service": service,
        "asks": "30,000 MiB and 50 %",
        "nodes_fit": 0,
        "refused": True,
        "why": why,
        "detail": "card 0 of n1, the closest: 24,576 MiB free, 30,000 asked",
        "advice": "ask for less",
    }


def state(nodes, waiting=(), version=1, **more):
    told = {
        "version": version,
        "problem": "",
        "policy": {"latency-sensitive": "balanced", "best-effort": "dense"},
        "nodes": list(nodes),
        "pending": list(waiting),
        "denied": [],
        "conflicts": [],
        "notes": [],
        "decisions": [],
        "evictions": [],
        "traffic": [],
        **more,
    }
    placed = sum(len(each["slices"]) for one in nodes for each in one["cards"])
    return {**told, "summary": overview.summary(told, placed), "services": overview.services(told)}


class Shown:
    """A source that shows what it is given. asked: pods that were asked about."""

    def __init__(self, first, explanation=None):
        self.latest, self.explanation, self.asked = first, explanation, []

    def explain(self, name):
        self.asked.append(name)
        return self.explanation

    def change(self, *args, **more):
        self.latest = state(*args, version=self.latest["version"] + 1, **more)


@contextlib.asynccontextmanager
async def opened(source, **how):
    """The page in a tab."""
    async with serve_page(source, 0, Frame("cardwise", "a cluster")) as url, browser() as page:
        await page.open(url, **how)
        yield page, url


EXPLAINED = {
    "pod": "default/large-0",
    "uid": "u",
    "policy": "balanced",
    "asks": [
        {
            "container": "main",
            "stage": "app",
            "cards": 1,
            "whole": False,
            "memory_mib": 30000,
            "memory_pct": 0,
            "compute_pct": 50,
            "oversubscribe": False,
            "models": [],
            "unwanted_models": [],
        }
    ],
    "bound_to": None,
    "allocation": None,
    "nodes_total": 1,
    "nodes_fit": 0,
    "refusals": [{"code": "card_memory", "short": "too little card memory", "nodes": 1}],
    "nodes": [
        {
            "name": "n1",
            "fits": False,
            "reason": {
                "code": "card_memory",
                "short": "s",
                "long": "24,576 MiB free, 30,000 asked",
                "advice": "ask for less",
            },
            "cost": None,
            "factors": {},
            "cards": [
                {
                    "uuid": "c1",
                    "chosen": False,
                    "reason": {"code": "card_memory", "short": "s", "long": "too small", "advice": "ask for less"},
                    "memory_free_mib": 24576,
                    "memory_total_mib": 24576,
                    "memory_lent_mib": 0,
                    "memory_lent_free_mib": 0,
                    "compute_free_pct": 100.0,
                    "compute_used_share": None,
                    "slices": 0,
                }
            ],
        }
    ],
}
BUSY = state(
    [node("n1", card("c1", 3), card("c2")), node("n2", card("c3", 2), fenced=True)],
    [pending()],
    conflicts=[{"pod": "default/odd", "node": "n2", "text": "n2 reports no card c9"}],
    decisions=[
        {
            "pod": "default/chat-c1-0",
            "service": "default/chat",
            "node": "n1",
            "asks": "4,096 MiB and 20 %",
            "cards": ["c1"],
            "class": "latency-sensitive",
            "policy": "balanced",
        }
    ],
    evictions=[
        {"pod": "default/batch-0", "node": "n1", "at": "2026-01-02T03:04:05Z", "why": "went for default/chat-0"}
    ],
    traffic=[
        {
            "service": "chat",
            "requests_per_s": 12.5,
            "p99_ms": 240.0,
            "target_ms": 200.0,
            "queue": 3,
            "queue_depth": 64,
            "refused_share": 0.01,
        }
    ],
    notes=["a note"],
)


async def test_what_changes_is_seen_without_a_reload_and_what_does_not_stays_the_same_element(tmp_path):
    source = Shown(state([node("n1", card("c1", 1)), node("n2", card("c2"))]))
    async with opened(source) as (page, _):
        await page.until("document.getElementById('live').textContent === 'live'")
        await page.js("window.kept = document.querySelector('#card-c1')")
        source.change([node("n1", card("c1", 1)), node("n2", card("c2", 4)), node("n3", card("c3"))], [pending()])
        await page.until("document.querySelectorAll('article.node').length === 3")
        assert await page.js("document.querySelector('#card-c2').innerText.includes('×4')")
        assert "card 0 of n1, the closest" in await page.js("document.getElementById('pending').innerText")
        assert await page.js("document.querySelector('#card-c1') === window.kept")
        source.change([node("n1", card("c1", 1))])
        await page.until("document.querySelectorAll('article.node').length === 1")
        assert await page.js("document.getElementById('waiting').hidden")
        assert page.errors == []


async def test_a_page_whose_server_went_and_came_back_goes_on(tmp_path):
    source = Shown(state([node("n1", card("c1"))]))
    async with browser() as page:
        async with serve_page(source, 0, Frame("cardwise", "a cluster")) as url:
            await page.open(url)
            await page.until("document.getElementById('live').textContent === 'live'")
        await page.until("document.getElementById('live').className === 'lost'")
        port = int(url.rstrip("/").rpartition(":")[2])
        other = Shown(state([node("n9", card("c9"))]))
        async with serve_page(other, port, Frame("cardwise", "a cluster")):
            await page.until("document.querySelector('article.node').dataset.name === 'n9'")
            await page.until("document.getElementById('live').textContent === 'live'")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_wrong(tmp_path, scheme):
    async with opened(Shown(BUSY, EXPLAINED), scheme=scheme) as (page, _):
        await page.js("document.querySelectorAll('summary').forEach((each) => each.click())")
        await page.until("document.querySelectorAll('details[open] table').length === 2")
        assert await violations(page, tmp_path) == []
        await page.js("document.querySelector('#pending .why').click()")
        await page.until("document.querySelector('#why ol')")
        assert await violations(page, tmp_path) == []


async def test_axe_finds_nothing_wrong_with_many_nodes(tmp_path):
    many = state([node(f"n{i}", *(card(f"c{i}-{place}", i % 6) for place in range(8))) for i in range(40)])
    async with opened(Shown(many), width=400) as (page, _):
        assert await page.js("document.documentElement.scrollWidth") <= 400
        assert await violations(page, tmp_path) == []


async def test_everything_is_reached_by_keyboard(tmp_path):
    source = Shown(BUSY, EXPLAINED)
    async with opened(source) as (page, _):
        await page.press("/")
        assert await page.js("document.activeElement.id") == "filter"
        reached = []
        for _ in range(40):
            await page.press("Tab")
            reached.append(await page.js("document.activeElement.id || document.activeElement.tagName"))
            if reached[-1] == "card-c3":
                break
        assert [each for each in reached if each.startswith("card-")] == ["card-c1", "card-c2", "card-c3"]
        assert "why-default/large-0-" in reached
        await page.press("ArrowUp")
        assert await page.js("document.activeElement.id") == "card-c2"
        await page.js("document.getElementById('why-default/large-0-').focus()")
        await page.press("Enter")
        await page.until("document.querySelector('#why ol')")
        assert "24,576 MiB free, 30,000 asked" in await page.js("document.getElementById('why').innerText")
        assert source.asked == ["default/large-0"]
        await page.press("Escape")
        assert await page.until("!document.getElementById('why').open")
        assert await page.js("document.activeElement.id") == "why-default/large-0-"
        assert page.errors == []


async def test_the_filter_finds_nodes_pods_and_services(tmp_path):
    nodes = [node("n1", card("c1", 2, "default/chat")), node("n2", card("c2", 1, "default/speech"))]
    async with opened(Shown(state(nodes, [pending()]))) as (page, _):
        await page.js("document.getElementById('filter').value = 'SPEECH'")
        await page.js("document.getElementById('filter').dispatchEvent(new Event('input'))")
        seen = "[...document.querySelectorAll('article.node:not([hidden])')].map((each) => each.dataset.name)"
        assert await page.js(seen) == ["n2"]
        assert await page.js("document.getElementById('found').textContent") == "1 node of 2 found"
        services = await page.js("document.getElementById('services').innerText")
        assert "speech" in services
        assert "chat" not in services
        assert await page.js("document.querySelectorAll('#pending li').length") == 0


async def test_a_thousand_nodes_of_eight_cards_are_shown_where_one_looks(tmp_path):
    """And a change among them touches only what it is about."""
    nodes = [node(f"n{i:04}", *(card(f"c{i}-{place}", (i + place) % 6) for place in range(8))) for i in range(1000)]
    source = Shown(state(nodes))
    async with opened(source) as (page, _):
        assert await page.js("document.querySelectorAll('article.node').length") == 1000
        drawn = await page.js("document.querySelectorAll('.card').length")
        assert 8 <= drawn <= 400
        assert "8,000" in await page.js("document.getElementById('sums').innerText")
        await page.until("!document.getElementById('all').hidden && document.getElementById('map').height > 300")
        if shot := os.environ.get("CARDWISE_SHOT"):
            for scheme in ("light", "dark"):
                await page.look(scheme)
                await page.shot(Path(shot).with_name(f"page-1000-nodes-{scheme}.png"))
        last = "document.querySelector('article[data-name=n0999]')"
        assert await page.js(f"{last}.querySelectorAll('.card').length") == 0
        await page.js(f"{last}.scrollIntoView()")
        assert await page.until(f"{last}.querySelectorAll('.card').length") == 8
        await page.until("document.querySelectorAll('.card').length <= 400")
        source.change([*nodes[:-1], node("n0999", card("new", 5))])
        await page.until("document.getElementById('card-new')")
        assert page.errors == []


async def test_a_card_on_the_map_leads_to_its_node(tmp_path):
    nodes = [node(f"n{i}", card(f"c{i}", i % 6)) for i in range(300)]
    async with opened(Shown(state(nodes))) as (page, _):
        await page.until("document.getElementById('map').height > 20")
        await page.js(
            "(() => { const map = document.getElementById('map'), box = map.getBoundingClientRect();"
            "map.dispatchEvent(new MouseEvent('click', {clientX: box.left + 1, clientY: box.bottom - 20})) })()"
        )
        focused = await page.until("document.activeElement.closest('article')?.dataset.name")
        assert focused not in {"n0", ""}


async def test_names_are_text_and_never_markup_wherever_they_come_from(tmp_path):
    hostile = state(
        [node(HOSTILE, card(HOSTILE, 2, HOSTILE))],
        [pending(HOSTILE, HOSTILE, HOSTILE)],
        denied=[{"workload": HOSTILE, "where": HOSTILE, "why": HOSTILE, "pods": 1}],
        conflicts=[{"pod": HOSTILE, "node": HOSTILE, "text": HOSTILE}],
        decisions=[{**BUSY["decisions"][0], "pod": HOSTILE, "node": HOSTILE, "asks": HOSTILE, "policy": HOSTILE}],
        evictions=[{"pod": HOSTILE, "node": HOSTILE, "at": "2026-01-02T03:04:05Z", "why": HOSTILE}],
        traffic=[{**BUSY["traffic"][0], "service": HOSTILE}],
        notes=[HOSTILE],
        problem=HOSTILE,
        policy={HOSTILE: HOSTILE, "other": "x"},
    )
    explained = {**EXPLAINED, "pod": HOSTILE, "policy": HOSTILE, "nodes": [{**EXPLAINED["nodes"][0], "name": HOSTILE}]}
    async with opened(Shown(hostile, explained)) as (page, _):
        await page.js("document.querySelectorAll('summary, #pending .why').forEach((each) => each.click())")
        await page.until("document.querySelector('#why ol') && document.querySelector('details[open] table')")
        assert await page.js("document.querySelectorAll('img, script:not([src]), iframe').length") == 0
        assert await page.js("document.title") == "cardwise"
        assert (await page.js("document.body.innerText")).count("<img src=x") >= 12
        assert page.errors == []


async def test_no_request_leaves_the_host(tmp_path):
    """By what the browser asked for, whatever the answer was."""
    source = Shown(BUSY, EXPLAINED)
    async with serve_page(source, 0, Frame("cardwise", "a cluster")) as url, browser() as page:
        await page.open(url)
        await page.js("document.querySelector('#pending .why').click()")
        await page.until("document.querySelector('#why ol')")
        asked = [each for each in page.requests if not each.startswith("data:")]
        assert len(asked) >= 10
        assert [each for each in asked if not each.startswith(url)] == []


async def test_the_page_only_reads():
    async with serve_page(Shown(BUSY), 0) as url, aiohttp.ClientSession() as http:
        for path in ("", "state", "events", "explain/default/chat"):
            for method in ("POST", "PUT", "PATCH", "DELETE"):
                async with http.request(method, url + path) as answer:
                    assert answer.status == 405


async def test_another_hosts_name_is_refused_for_every_path():
    async with serve_page(Shown(BUSY), 0) as url, aiohttp.ClientSession() as http:
        for path in ("", "state", "events", "explain/default/chat", "page.js"):
            async with http.get(url + path, headers={"Host": "evil.example:8265"}) as answer:
                assert answer.status == 403


async def test_a_reader_that_stays_does_not_hold_up_the_end():
    async with aiohttp.ClientSession() as http:
        async with serve_page(Shown(BUSY), 0) as url:
            stream = await http.get(f"{url}events")
            assert (await stream.content.readline()) == b"event: hello\n"
        async with asyncio.timeout(40):
            assert (await stream.content.read()).endswith(b"\n\n")
