"""The page over a bad wire, in a real browser: what is cut, what hangs without an end, tabs that nobody looks at."""

from __future__ import annotations

import asyncio
import contextlib

from cardwise.web import news
from cardwise.web.page import Frame, serve_page
from tests.e2e.browser import browser
from tests.e2e.test_page import Shown, card, node, state
from tests.e2e.wire_cut import Forwarder

LIVE = "document.getElementById('live')"
OPEN = "streams.filter((each) => each.readyState !== EventSource.CLOSED).length"
PROBE = """
window.streams = [];
window.EventSource = class extends EventSource { constructor(url) { super(url); streams.push(this); } };
window.patience = 0;
window.impatient = false;
const wait = window.setTimeout;
window.setTimeout = (then, ms) => {
  const silence = ms > 30000;
  window.patience += silence;
  return wait(then, ms < 1000 || (silence && !impatient) ? ms : ms / 20);
};
"""
"""Keeps the streams that the page opens, counts how often it begins to wait for a word, and makes its waits twenty
times shorter; that one only when told to, for a busy machine may be silent for seconds."""


@contextlib.asynccontextmanager
async def wired(monkeypatch):
    """The page in a tab, behind a wire that can be cut."""
    monkeypatch.setattr(news, "BREATH_S", 0.25)
    source = Shown(state([node("n1", card("c1"))]))
    async with serve_page(source, 0, Frame("cardwise", "a cluster")) as url, browser() as page:
        with Forwarder(lambda: int(url.rstrip("/").rpartition(":")[2])) as wire:
            await page.tab.add_init_script(PROBE)
            await page.open(f"http://127.0.0.1:{wire.port}/")
            await page.until(f"{LIVE}.textContent === 'live'")
            yield page, source, wire


async def test_a_dead_connection_is_told_apart_from_a_quiet_cluster(tmp_path, monkeypatch):
    """A port forward whose far end is gone stays open, and says nothing."""
    async with wired(monkeypatch) as (page, source, wire):
        begun = await page.js("patience")
        await page.until(f"patience >= {begun + 4}")  # each "nothing is new" is a sign of life
        assert await page.js(f"{LIVE}.textContent") == "live"
        assert await page.js("streams.length") == 1
        begun = await page.js("impatient = true, patience")
        await page.until(f"patience > {begun}")
        wire.mute = True
        await page.until(f"{LIVE}.textContent.includes('it is silent')")
        source.change([node("n2", card("c2"))])
        wire.drop()
        wire.mute = False
        await page.until("document.querySelector('article.node').dataset.name === 'n2'")
        await page.until(f"{LIVE}.textContent === 'live'")  # impatient as it is, it may miss a word meanwhile


async def test_a_stream_and_a_fetch_that_break_together_are_begun_anew_once(tmp_path, monkeypatch):
    async with wired(monkeypatch) as (page, _, wire):
        await page.js(
            "window.whole = window.fetch; window.asked = 0;"
            "window.fetch = () => { asked += 1; return new Promise((_, no) => { window.fail = no; }); }; 0"
        )
        wire.drop()
        await page.until("asked === 1")
        wire.drop()
        await page.until(f"{LIVE}.className === 'lost'")
        await page.js("fail(new Error('cut')); window.fetch = window.whole; 0")
        await page.until(f"{LIVE}.textContent === 'live'")
        await asyncio.sleep(0.5)  # a second one would be open by now
        assert await page.js(OPEN) == 1


async def test_a_fetch_that_hangs_does_not_keep_the_page_from_beginning_anew(tmp_path, monkeypatch):
    async with wired(monkeypatch) as (page, _, wire):
        await page.js(
            "window.whole = window.fetch; window.asked = 0;"
            "window.fetch = () => { asked += 1; return new Promise(() => {}); }; 0"
        )
        wire.drop()
        await page.until("asked === 1")
        await page.js("window.fetch = window.whole; 0")
        wire.drop()
        await page.until(f"{LIVE}.textContent === 'live'")


async def test_a_tab_that_nobody_looks_at_lets_its_connection_go(tmp_path, monkeypatch):
    """A browser has six to a host: the seventh tab would stay empty."""
    seen = "Object.defineProperty(document, 'hidden', {{value: {}, configurable: true}});"
    seen += "document.dispatchEvent(new Event('visibilitychange'))"
    async with wired(monkeypatch) as (page, source, _):
        await page.js(seen.format("true"))
        await page.until(f"{OPEN} === 0")
        source.change([node("n2", card("c2"))])
        await page.js(seen.format("false"))
        await page.until("document.querySelector('article.node').dataset.name === 'n2'")
        assert await page.js(OPEN) == 1
