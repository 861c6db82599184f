"""A tab of a headless Chromium, driven by its DevTools protocol, and commands that serve a page for it.

Skipped, with the reason, where there is no browser.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
DEADLINE_S = 60
MOST_SHOWN = 3000
"""Characters of a page that a failure shows."""


class Page:
    """One tab: evaluates JavaScript in it, and sets its size, its colours and what is pressed."""

    def __init__(self, socket):
        self._socket, self._number = socket, 0
        self.errors, self.requests = [], []

    async def call(self, method, **params):
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        while True:
            told = await self._socket.receive_json(timeout=DEADLINE_S)
            if told.get("method") in {"Runtime.exceptionThrown", "Log.entryAdded"}:
                self.errors.append(told["params"])
            if told.get("method") == "Network.requestWillBeSent":
                self.requests.append(told["params"]["request"]["url"])
            if told.get("id") == self._number:
                assert "error" not in told, told
                return told["result"]

    async def js(self, expression):
        told = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def until(self, expression):
        """Wait for an expression to hold; returns what it was, True for an element."""
        deadline = time.monotonic() + DEADLINE_S
        wanted = f"((found) => found instanceof Node || found)({expression})"
        while not (value := await self.js(wanted)):
            if time.monotonic() > deadline:
                pytest.fail(f"never held: {expression}; {(await self.js('document.body.innerText'))[:MOST_SHOWN]}")
            await asyncio.sleep(0.1)
        return value

    async def open(self, url, width=1200, height=900, scheme="light"):
        await self.call("Runtime.enable")
        await self.call("Log.enable")
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        await self.look(scheme)
        await self.call("Page.navigate", url=url)
        await self.until("document.querySelectorAll('.card').length")

    async def look(self, scheme):
        """Light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def shot(self, file):
        told = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=False)
        Path(file).write_bytes(base64.b64decode(told["data"]))

    async def press(self, key, code):
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)


@contextlib.contextmanager
def serving_page(*arguments):
    """A command of cardwise that serves a page, as a person starts it; yields the process and the page's address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cardwise", *map(str, arguments), "--port", "0"],
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
