"""axe-core, the accessibility checker, fetched once from the npm registry and judged by its digest.

Only tests have it: nothing of it is shipped. Skipped, with the reason, where there is no npm or no registry.
Source: github.com/dequelabs/axe-core (MPL-2.0).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

VERSION = "4.14.1"
SHA512 = (
    "1477dafa598d8d065f273d6af302aa203c02e83131707b7fa648cd41bd3d6b73"
    "4f8c22a0dab86ee6a6f64b8afbe804b214d36db85a2826965edfb3a0b9d546b5"
)
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cardwise" / f"axe-core-{VERSION}"
RULES = ("wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice")


def axe_script(folder: Path) -> str:
    """The script's text. folder: for the download."""
    script = CACHE / "axe.min.js"
    if not script.is_file():
        _fetch(folder, script)
    return script.read_text()


def _fetch(folder: Path, script: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm here to fetch axe-core with")
    command = [npm, "pack", "--silent", "--pack-destination", str(folder), f"axe-core@{VERSION}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=folder)
    except subprocess.TimeoutExpired:
        pytest.skip("axe-core cannot be fetched: npm does not answer within two minutes")
    if done.returncode:
        pytest.skip(f"axe-core cannot be fetched: {done.stderr.strip()[-200:]}")
    archive = folder / f"axe-core-{VERSION}.tgz"
    assert hashlib.sha512(archive.read_bytes()).hexdigest() == SHA512, "not the axe-core that was looked at"
    with tarfile.open(archive) as packed:
        content = packed.extractfile("package/axe.min.js").read()
    script.parent.mkdir(parents=True, exist_ok=True)
    whole = script.with_suffix(f".{os.getpid()}")
    whole.write_bytes(content)
    whole.replace(script)


async def violations(page, folder: Path) -> list[str]:
    """What axe-core finds wrong with a page as it is now, a line per element."""
    await page.js(axe_script(folder) + "; true")
    told = await page.js(f"axe.run(document, {{runOnly: {list(RULES)}}}).then((found) => found.violations)")
    return [
        f"{each['id']}: {' '.join(map(str, node['target']))}: {node['failureSummary']}"
        for each in told
        for node in each["nodes"]
    ]
