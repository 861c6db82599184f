"""Sphinx: the documentation site. `make docs` fails on any warning, so a broken reference does not go out."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from sphinx.application import Sphinx

from cardwise import __version__
from cardwise.core.reasons import WORDINGS
from cardwise.doctor.checks import CHECKS
from cardwise.gateway.refusals import MEANINGS
from cardwise.metrics_table import page as metrics_page
from cardwise.plan.reference import page as capacity_page

ROOT = Path(__file__).resolve().parents[1]
_PLACE = re.compile(r"\{\{.*?\}\}")
"""What Prometheus puts in."""

project = "cardwise"
author = "The cardwise authors"
release = __version__
extensions = ["myst_parser", "sphinx_click"]
html_theme = "furo"
html_title = f"cardwise {__version__}"
exclude_patterns = ["_build"]
myst_heading_anchors = 3


def _write_reasons() -> None:
    """Generate the page of reasons from the code, so that it cannot differ from it."""
    rows = "\n".join(
        f"| `{code.value}` | {wording.short} | {wording.long} | {wording.advice} |"
        for code, wording in WORDINGS.items()
    )
    _write(
        "reasons.md",
        '# Reasons\n\nEvery "no" of the placement core, generated from `core/reasons.py`. Codes never change their '
        "meaning.\n\n| code | short, in events | long, in explain | what to do |\n|---|---|---|---|\n" + rows + "\n",
    )


def _write_answers() -> None:
    """The same for what the gateway answers by itself."""
    rows = "\n".join(f"| `{word}` | {told.statuses} | {told.meaning} |" for word, told in MEANINGS.items())
    _write(
        "answers.md",
        "# Answers of the gateway's own\n\nEvery error that the gateway answers by itself says why in "
        "`x-cardwise-reason`; one without this header is the replica's. Generated from `gateway/refusals.py`; words "
        "never change their meaning. The metrics `cardwise_gateway_rejections_total` (what no replica of a service got "
        "to see) and `cardwise_gateway_unserved_total` (what no service got to see) carry the same words.\n\n"
        "| word | status | meaning |\n|---|---|---|\n" + rows + "\n",
    )


def _write_alerts() -> None:
    """The index of the runbooks, from the rules that the chart installs."""
    rules = yaml.safe_load((ROOT / "charts" / "cardwise" / "files" / "rules" / "alerts.yaml").read_text())
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    rows = "\n".join(
        f"| [{each['alert']}](../../runbooks/{each['alert']}.md) | {each['labels']['severity']} | "
        f"{each.get('for', 'at once')} | {_PLACE.sub('…', each['annotations']['summary'])} |"
        for each in alerts
    )
    pages = "\n".join(f"../../runbooks/{each['alert']}" for each in alerts)
    _write(
        "alerts.md",
        "# Alerts\n\nGenerated from the chart's rules; each has a page that says what to look at and what to do. "
        "How to have them: [monitoring](../../howto/monitoring.md). critical: requests fail, or limits do not hold; "
        "warning: look today; info: it explains another one.\n\n"
        "| alert | severity | after | says |\n|---|---|---|---|\n"
        f"{rows}\n\n```{{toctree}}\n:hidden:\n{pages}\n```\n",
    )


def _write_checks() -> None:
    """The index of troubleshooting, from the checks themselves."""
    words = {"objects": "the cluster", "metrics": "Prometheus", "node": "one node"}
    rows = "\n".join(
        f"| [{check.code}](../../troubleshooting/{check.code.lower()}.md) | {check.title} | "
        f"{', '.join(words[need] for need in sorted(check.needs))} | {', '.join(sorted(check.explains))} |"
        for check in CHECKS
    )
    _write(
        "troubleshooting.md",
        "# Troubleshooting\n\nEvery cause that [`cardwise doctor`](../../howto/doctor.md) can name, generated from its "
        "checks. Codes never change their meaning. A finding of the last column at the same place is a consequence.\n\n"
        "| code | cause | seen in | explains |\n|---|---|---|---|\n" + rows + "\n\n```{toctree}\n:hidden:\n:glob:\n"
        "/troubleshooting/*\n```\n",
    )


def _write(name: str, text: str) -> None:
    page = Path(__file__).parent / "reference" / "generated" / name
    page.parent.mkdir(exist_ok=True)
    page.write_text(text)


_write_reasons()
_write_answers()
_write_checks()
_write("capacity.md", capacity_page())
_write("metrics.md", metrics_page())
_write_alerts()


def setup(app: Sphinx) -> None:
    """Show the asterisks of help texts as they are: reStructuredText would take them for emphasis."""

    def _escape(_app: Sphinx, _ctx: object, lines: list[str]) -> None:
        lines[:] = [line.replace("*", r"\*") for line in lines]

    app.connect("sphinx-click-process-options", _escape)
