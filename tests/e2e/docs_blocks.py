"""The fenced blocks of README and docs, and the commands in them: what a page claims, for the tests that hold it to it.

A block of commands is marked ``console`` where a laptop is enough and ``console cluster`` where it takes a cluster; a
command begins with ``$ ``, and what does not is output. A comment right before a block says what no test can run::

    <!-- not run: REASON -->                                  nothing of the block
    <!-- not run: `kubectl exec`, `kubectl debug`: REASON -->   what begins so
    <!-- file: NAME -->                                       the block is what the reader writes into this file

Says nothing about whether a command is right.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROMPT = "$ "
BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<info>\S[^\n]*)?\n(?P<text>.*?)^(?P=indent)```[ ]*$", re.MULTILINE | re.DOTALL
)
MARK = re.compile(r"<!-- (not run|file): ((?:(?!-->).)*) -->\s*", re.DOTALL)
MARKS = re.compile(rf"(?:{MARK.pattern})+\Z", re.DOTALL)
EXCEPT = re.compile(r"((?:`[^`]+`(?:, )?)+): (.+)", re.DOTALL)
HEADING = re.compile(r"^#{2,3} (.+)$", re.MULTILINE)
COMMAND = re.compile(
    r"^ *(\$ |[A-Za-z_]+=\S*\$?\(|(sudo )?(kubectl|helm|docker|cardwise|curl|python3?|make|export|git|pip|uv"
    r"|\.venv/bin/\S+|nvidia-smi|nvidia-ctk|promtool|ssh|echo|cd)( \S|$))",
    re.MULTILINE,
)
"""A line that a reader would type, wherever it stands."""


SENTENCE = re.compile(r"`((?:cardwise|kubectl|helm) [^`]+)`")


@dataclass(frozen=True)
class Block:
    """page: from the checkout's root. reason: why it, or what begins with one of ``but``, is not run. file: or ""."""

    page: str
    line: int
    section: str
    language: str
    cluster: bool
    text: str
    reason: str
    but: tuple[str, ...]
    file: str

    def __str__(self):
        return f"{self.page}:{self.line}"

    @property
    def commands(self):
        """All commands of a ``console`` block, whether they can be run or not."""
        return commands_of(self.text) if self.language == "console" else []

    @property
    def run(self):
        """Those that a test has to run."""
        if self.reason and not self.but:
            return []
        return [each for each in self.commands if not each.startswith(self.but)] if self.but else self.commands


def pages():
    """README and the pages that people write; the generated ones come from the code."""
    docs = ROOT / "docs"
    passed = (docs / "_build", docs / "reference" / "generated")
    written = (page for page in sorted(docs.rglob("*.md")) if not any(map(page.is_relative_to, passed)))
    return [ROOT / "README.md", *written]


def blocks():
    """Of all pages, as they stand there."""
    return [block for page in pages() for block in blocks_of(page.read_text(), str(page.relative_to(ROOT)))]


def blocks_of(text, page):
    made = []
    for found in BLOCK.finditer(text):
        before = text[: found.start()]
        reason, but, file = _marks(before)
        language, *classes = (found["info"] or "").split() or [""]
        made.append(
            Block(
                page=page,
                line=before.count("\n") + 1,
                section=(["", *HEADING.findall(before)])[-1],
                language=language,
                cluster="cluster" in classes,
                text=textwrap.dedent(found["text"]),
                reason=reason,
                but=but,
                file=file,
            )
        )
    return made


def named_in_sentences():
    """Page, line and text of each command of ours, of kubectl and of Helm that stands within a sentence."""
    for page in pages():
        text = page.read_text()
        prose = BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
        for found in SENTENCE.finditer(prose):
            yield f"{page.relative_to(ROOT)}:{prose[: found.start()].count(chr(10)) + 1}", " ".join(found[1].split())


def _marks(before):
    """Reason, what it is about (nothing: the whole block), and file, from the comments right before a block."""
    marks = MARKS.search(before)
    told = dict(MARK.findall(marks[0])) if marks else {}
    reason = " ".join(told.get("not run", "").split())
    parts = EXCEPT.fullmatch(reason)
    but = tuple(re.findall(r"`([^`]+)`", parts[1])) if parts else ()
    return (parts[2] if parts else reason), but, told.get("file", "")


def commands_of(text):
    """Each with its further lines: those after a backslash, and those within quotes."""
    made, lines = [], text.splitlines()
    while lines:
        line = lines.pop(0)
        if not line.startswith(PROMPT):
            continue
        command = line.removeprefix(PROMPT)
        while lines and _goes_on(command):
            command += "\n" + lines.pop(0)
        made.append(command)
    return made


def _goes_on(command):
    if command.endswith("\\"):
        return True
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return True
    return False
