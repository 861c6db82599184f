"""The page of `cardwise up` in a real browser, and the command as a person starts and ends it.

Drives a Chromium that is on this machine by its DevTools protocol; skipped, with the reason, where there is none.
`CARDWISE_SHOT=FILE.png` keeps the picture that the README shows.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
DEADLINE_S = 60
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


class Page:
    """One tab: evaluates JavaScript in it, and sets its size, its colours and what is pressed."""

    def __init__(self, socket):
        self._socket, self._number = socket, 0
        self.errors = []

    async def call(self, method, **params):
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        while True:
            told = await self._socket.receive_json(timeout=DEADLINE_S)
            if told.get("method") in {"Runtime.exceptionThrown", "Log.entryAdded"}:
                self.errors.append(told["params"])
            if told.get("id") == self._number:
                assert "error" not in told, told
                return told["result"]

    async def js(self, expression):
        told = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def until(self, expression):
        """Wait for an expression to hold; returns what it was."""
        deadline = time.monotonic() + DEADLINE_S
        while not (value := await self.js(expression)):
            assert time.monotonic() < deadline, f"never held: {expression}; {await self.js('document.body.innerText')}"
            await asyncio.sleep(0.1)
        return value

    async def open(self, url, width=1200, height=900, scheme="light"):
        await self.call("Runtime.enable")
        await self.call("Log.enable")
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=features)
        await self.call("Page.navigate", url=url)
        await self.until("document.querySelectorAll('.card').length")

    async def shot(self, file):
        told = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=False)
        Path(file).write_bytes(base64.b64decode(told["data"]))

    async def press(self, key, code):
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)


@contextlib.asynccontextmanager
async def browser(folder):
    """A tab of a headless browser with a profile of its own."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser here: install one of {', '.join(BROWSERS)}")
    flags = ["--headless=new", "--remote-debugging-port=0", f"--user-data-dir={folder}", "--no-first-run"]
    flags += ["--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-proxy-server"]
    if os.geteuid() == 0:
        flags.append("--no-sandbox")  # Chromium's sandbox refuses root; the page is ours
    process = subprocess.Popen([program, *flags, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = await _debugging_port(folder, process)
        async with aiohttp.ClientSession() as http:
            async with http.get(f"http://127.0.0.1:{port}/json/list") as answer:
                tab = next(each for each in await answer.json() if each["type"] == "page")
            async with http.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=2**26) as socket:
                yield Page(socket)
    finally:
        process.terminate()
        process.wait()


async def _debugging_port(folder, process):
    told = folder / "DevToolsActivePort"
    deadline = time.monotonic() + DEADLINE_S
    while not (told.is_file() and told.read_text().strip()):
        assert process.poll() is None, "the browser ended"
        assert time.monotonic() < deadline, "the browser opened no debugging port"
        await asyncio.sleep(0.05)
    return int(told.read_text().split()[0])


@contextlib.contextmanager
def up(*options):
    """`cardwise up` as a person starts it; yields the process and the page's address."""
    process = subprocess.Popen(
        [*CARDWISE, "up", "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        line = process.stdout.readline()
        url = re.search(r"http://\S+", line)
        assert url, (line, process.stderr.read() if process.poll() is not None else "")
        yield process, url[0]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


async def test_the_page_shows_every_card_and_why_a_pod_waits(tmp_path):
    with up("--policy", "dense") as (_, url):
        async with browser(tmp_path) as page:
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
        async with browser(tmp_path) as page:
            await page.open(url)
            hosts = await page.js("performance.getEntriesByType('resource').map(each => new URL(each.name).host)")
            assert set(hosts) == {url.removeprefix("http://").strip("/")}


@pytest.mark.parametrize("width", [1200, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_page_fits_its_window_in_light_and_dark(tmp_path, width, scheme):
    with up("--policy", "dense") as (_, url):
        async with browser(tmp_path) as page:
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
        async with browser(tmp_path / "profile") as page:
            await page.open(url)
            await page.press("Tab", 9)
            await page.press("Enter", 13)
            assert await page.until("document.querySelectorAll('details[open] tbody tr').length") == 1
            file.write_text(POD % ("first", 6))
            assert await page.until("document.querySelectorAll('details[open] tbody tr').length === 5")
            assert await page.js("document.activeElement.tagName") == "SUMMARY"
            assert "first ×1" in await page.js("document.getElementById('pending').innerText")


async def test_a_mistake_in_the_files_is_said_and_mended_without_a_restart(tmp_path):
    file = tmp_path / "pods.yaml"
    file.write_text(POD % ("first", 1))
    with up("-f", str(file)) as (_, url):
        async with browser(tmp_path / "profile") as page:
            await page.open(url)
            file.write_text("kind: [")
            await page.until("!document.getElementById('problem').hidden")
            assert "pods.yaml:1" in await page.js("document.getElementById('problem').textContent")
            assert "first" in await page.js("document.getElementById('legend').innerText")
            file.write_text(POD % ("second", 1))
            await page.until("document.getElementById('problem').hidden")
            assert await page.until("document.getElementById('legend').innerText") == "second"


async def test_names_from_files_are_text_and_never_markup(tmp_path):
    file = tmp_path / "<img src=x onerror=document.title='broken'>.yaml"
    file.write_text(POD.replace("gpu.memory", "gpu.memmory") % ("first", 1))
    with up("-f", str(file)) as (_, url):
        async with browser(tmp_path / "profile") as page:
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


LEAST_CONTRAST = """
(() => {
  const channel = (c) => ((c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const back = numbers(getComputedStyle(each).backgroundColor);
      if (back.length === 3 || back[3] > 0) return back;
    }
    return [255, 255, 255];
  };
  const ratios = [...document.querySelectorAll("body *")]
    .filter((each) => each.checkVisibility() && [...each.childNodes].some((child) => child.nodeType === 3
      && child.textContent.trim()))
    .map((each) => {
      const [one, other] = [light(numbers(getComputedStyle(each).color)), light(behind(each))].sort((a, b) => b - a);
      return (one + 0.05) / (other + 0.05);
    });
  return Math.min(...ratios);
})()
"""
"""The least contrast of text to what is behind it. Source: WCAG 2.2, 1.4.3, which asks for 4.5."""
