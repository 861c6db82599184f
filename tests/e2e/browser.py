"""A tab of a headless Chromium, driven by Playwright, and commands that serve a page for it.

Skipped, with the reason, where there is no browser.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import sys
import time

import pytest
from playwright.async_api import async_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
DEADLINE_S = 60
MOST_SHOWN = 3000
"""Characters of a page that a failure shows."""


class Page:
    """One tab: evaluates JavaScript in it, and sets its size, its colours and what is pressed.

    errors: what scripts threw, and what the console was told as a warning or an error. requests: addresses that were
    asked for, whatever came of it.
    """

    def __init__(self, tab):
        self.tab = tab
        self.errors, self.requests = [], []
        tab.on("pageerror", lambda error: self.errors.append(str(error)))
        tab.on("console", lambda line: self.errors.append(line.text) if line.type in {"error", "warning"} else None)
        tab.on("request", lambda request: self.requests.append(request.url))

    async def js(self, expression):
        return await self.tab.evaluate(expression)

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
        """And wait until cards are shown. scheme: light or dark."""
        await self.tab.set_viewport_size({"width": width, "height": height})
        await self.tab.emulate_media(color_scheme=scheme)
        await self.tab.goto(url)
        await self.until("document.querySelectorAll('.card').length")

    async def shot(self, file):
        await self.tab.screenshot(path=file)

    async def press(self, key):
        await self.tab.keyboard.press(key)


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
async def browser(**how):
    """A tab of a headless browser with a profile of its own. how: what Playwright's ``new_page`` takes."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser here: install one of {', '.join(BROWSERS)}")
    sandbox = os.geteuid() != 0  # Chromium's sandbox refuses root; the page is ours
    flags = ["--disable-dev-shm-usage", "--no-proxy-server"]
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(executable_path=program, args=flags, chromium_sandbox=sandbox)
        try:
            tab = await running.new_page(**how)
            tab.set_default_timeout(1000 * DEADLINE_S)
            yield Page(tab)
        finally:
            await running.close()


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
