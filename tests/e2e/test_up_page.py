"""The page of `cardwise up` in a real browser, and the command as a person starts and ends it.

`CARDWISE_SHOT=FILE.png` keeps the picture that the README shows.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.browser import DEADLINE_S, LEAST_CONTRAST, browser, serving_page

CARDWISE = (sys.executable, "-m", "cardwise")
POD = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: %s}
spec:
  replicas: %d
  template:
    spec:
      containers:
        - name: main
          resources: {limits: {nvidia.com/gpu.memory: 4096, nvidia.com/gpu.cuda-cores: 20}}
"""


def up(*options):
    """`cardwise up` as a person starts it; yields the process and the page's address."""
    return serving_page("up", *options)


def save(file, text):
    """At once, as editors do: a file that is half written by now is a state of its own, without the pods."""
    part = file.with_name("part")
    part.write_text(text)
    part.replace(file)


async def test_the_page_shows_every_card_and_why_a_pod_waits(tmp_path):
    with up("--policy", "dense") as (_, url):
        async with browser() as page:
            await page.open(url)
            assert await page.js("document.querySelectorAll('article.node').length") == 4
            assert await page.js("document.querySelectorAll('.card').length") == 16
            assert "9 of 16 cards in use" in await page.js("document.getElementById('sentence').textContent")
            pending = await page.js("document.getElementById('pending').innerText")
            assert "reranker ×1" in pending
            assert "no card here is of model H100, there are A10" in pending
            assert page.errors == []


async def test_the_page_needs_nothing_from_elsewhere(tmp_path):
    with up() as (_, url):
        async with browser() as page:
            await page.open(url)
            hosts = await page.js("performance.getEntriesByType('resource').map(each => new URL(each.name).host)")
            assert set(hosts) == {url.removeprefix("http://").strip("/")}


@pytest.mark.parametrize("width", [1200, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_page_fits_its_window_in_light_and_dark(tmp_path, width, scheme):
    with up("--policy", "dense") as (_, url):
        async with browser() as page:
            await page.open(url, width=width, scheme=scheme)
            assert await page.js("document.documentElement.scrollWidth") <= width
            back = await page.js("getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, re.findall(r"\d+", back))) < 384) == (scheme == "dark")
            assert await page.js(LEAST_CONTRAST) >= 4.5
            if shot := os.environ.get("CARDWISE_SHOT"):
                file = Path(shot)
                plain = (width, scheme) == (1200, "light")
                await page.shot(file if plain else file.with_name(f"{file.stem}-{width}-{scheme}.png"))


async def test_a_card_opens_by_keyboard_and_stays_open_when_the_files_change(tmp_path):
    file = tmp_path / "pods.yaml"
    file.write_text(POD % ("first", 1))
    with up("-f", str(file), "--nodes", "1", "--cards", "1") as (_, url):
        async with browser() as page:
            await page.open(url)
            await page.js("document.getElementById('nodes-title').focus()")
            await page.press("Tab")
            await page.press("Enter")
            assert await page.until("document.querySelectorAll('details[open] tbody tr').length") == 1
            save(file, POD % ("first", 6))
            assert await page.until("document.querySelectorAll('details[open] tbody tr').length === 5")
            assert await page.js("document.activeElement.tagName") == "SUMMARY"
            assert "first ×1" in await page.js("document.getElementById('pending').innerText")


async def test_a_mistake_in_the_files_is_said_and_mended_without_a_restart(tmp_path):
    file = tmp_path / "pods.yaml"
    file.write_text(POD % ("first", 1))
    with up("-f", str(file)) as (_, url):
        async with browser() as page:
            await page.open(url)
            save(file, "kind: [")
            await page.until("!document.getElementById('problem').hidden")
            assert "pods.yaml:1" in await page.js("document.getElementById('problem').textContent")
            assert "first" in await page.js("document.getElementById('services').innerText")
            save(file, POD % ("second", 1))
            await page.until("document.getElementById('problem').hidden")
            await page.until("document.getElementById('services').innerText.includes('second')")
            assert "first" not in await page.js("document.getElementById('services').innerText")


async def test_names_from_files_are_text_and_never_markup(tmp_path):
    file = tmp_path / "<img src=x onerror=document.title='broken'>.yaml"
    file.write_text(POD.replace("gpu.memory", "gpu.memmory") % ("first", 1))
    with up("-f", str(file)) as (_, url):
        async with browser() as page:
            await page.open(url)
            assert "<img" in await page.until("document.getElementById('denied').textContent")
            assert await page.js("document.images.length") == 0
            assert await page.js("document.title") == "cardwise up"


async def test_another_hosts_name_is_refused():
    with up() as (_, url):
        async with aiohttp.ClientSession() as http, http.get(f"{url}state", headers={"Host": "evil.example"}) as answer:
            assert answer.status == 403


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_it_with_exit_code_0_and_no_traceback(number):
    with up() as (process, _):
        process.send_signal(number)
        _, told = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, told) == (0, "")


def test_a_taken_port_is_told_with_what_to_do():
    with up() as (_, url):
        port = url.rstrip("/").rpartition(":")[2]
        second = subprocess.run([*CARDWISE, "up", "--port", port], capture_output=True, text=True, check=False)
        assert second.returncode == 2
        assert "give another --port, or --no-page" in second.stderr
        assert "Traceback" not in second.stderr
