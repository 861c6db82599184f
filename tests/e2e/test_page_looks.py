"""How the page looks where it is not as its author has it: long names, narrow screens, forced colours, no cards."""

from __future__ import annotations

from cardwise.web.page import Frame, serve_page
from tests.e2e.browser import browser
from tests.e2e.test_page import BUSY, EXPLAINED, Shown, card, node, opened, state

LONG = "team-with-a-long-name/" + "service-name-that-goes-on-and-on-" * 7 + "end"
LONG_NODE = ".".join(["ip-10-20-30-40", "a" * 63, "b" * 63, "c" * 63])
EXCESS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
BROKEN = """
[...document.querySelectorAll('th, button')].filter((each) => {
  const range = document.createRange();
  range.selectNodeContents(each);
  const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size;
  return lines > each.textContent.trim().split(/\\s+/).length;
}).map((each) => each.textContent)
"""
"""Headings and buttons whose words are broken: with more lines than words."""


def long_names():
    return state(
        [node(LONG_NODE, card("GPU-" + "f" * 36, 3, LONG)), node("n2", card("c3", 1))],
        [{**BUSY["pending"][0], "pod": LONG, "service": LONG}],
        conflicts=[{"pod": LONG, "node": LONG_NODE, "text": LONG}],
        evictions=[{"pod": LONG, "node": LONG_NODE, "at": "2026-01-02T03:04:05Z", "why": LONG}],
        traffic=[{**BUSY["traffic"][0], "service": LONG}],
        notes=[LONG],
    )


async def resized(page, width):
    await page.tab.set_viewport_size({"width": width, "height": 800})


async def test_long_names_break_and_nothing_leaves_the_screen(tmp_path):
    async with opened(Shown(long_names())) as (page, _):
        await page.js("document.querySelectorAll('summary').forEach((each) => each.click())")
        await page.until("document.querySelector('details[open] table')")
        for width in (1200, 768, 375):
            await resized(page, width)
            assert await page.js(EXCESS) <= 0, width
            assert await page.js(BROKEN) == [], width


async def test_an_explanation_begins_at_its_beginning_and_can_be_closed_from_everywhere(tmp_path):
    many = {**EXPLAINED, "nodes": EXPLAINED["nodes"] * 10, "nodes_total": 4000}
    async with opened(Shown(BUSY, many), width=375) as (page, _):
        await page.js("document.querySelector('#pending .why').click()")
        await page.until("document.querySelectorAll('#why ol > li').length === 10")
        dialog = "document.getElementById('why')"
        assert await page.js(f"{dialog}.scrollHeight > {dialog}.clientHeight")
        assert await page.js(f"{dialog}.scrollTop") == 0
        await page.js(f"{dialog}.scrollTo(0, 9999)")
        seen = (
            "(({left, top}) => document.elementFromPoint(left + 2, top + 2).id)"
            "(document.getElementById('why-close').getBoundingClientRect())"
        )
        assert await page.js(seen) == "why-close"


async def test_with_forced_colours_bars_still_show_how_full_a_card_is(tmp_path):
    async with opened(Shown(BUSY)) as (page, _):
        colours = (
            "[...document.querySelectorAll('.bar i, .bar, .swatch')]"
            ".map((each) => getComputedStyle(each).backgroundColor)"
        )
        before = await page.js(colours)
        await page.tab.emulate_media(forced_colors="active")
        assert await page.js("matchMedia('(forced-colors: active)').matches")
        assert await page.js(colours) == before


async def test_nodes_without_cards_are_counted_and_found_but_not_in_the_way(tmp_path):
    bare = [node(f"cpu{i}") for i in range(12)]
    source = Shown(state([*bare, node("gpu", card("c1"))]))
    shown = "[...document.querySelectorAll('article.node:not([hidden])')].map((each) => each.dataset.name)"
    found = "document.getElementById('found').textContent"
    async with opened(source) as (page, _):
        assert await page.js(shown) == ["gpu"]
        assert await page.js(found) == "12 nodes without cards: not shown, but the filter finds them."
        assert await page.js("document.getElementById('all').hidden")
        typed = "(({0}) => {{ {0}.value = '{1}'; {0}.dispatchEvent(new Event('input')); }})"
        typed += "(document.getElementById('filter'))"
        await page.js(typed.format("box", "cpu7"))
        assert await page.js(shown) == ["cpu7"]
        await page.js(typed.format("box", ""))
        source.change(bare)
        await page.until(f"{found}.includes('handed over')")
        assert await page.js(shown) == []
        source.change([])
        await page.until(f"{found} === 'No node is known.'")


async def test_without_scripts_the_page_says_what_to_do():
    served = serve_page(Shown(BUSY), 0, Frame("cardwise", "a cluster"))
    async with served as url, browser(java_script_enabled=False) as page:
        await page.tab.goto(url)
        said = page.tab.locator("noscript")
        await said.wait_for(state="visible")
        assert "cardwise explain" in await said.inner_text()
