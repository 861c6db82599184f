"""Every check has its page, which says the same, and every page a check."""

from __future__ import annotations

import re

import pytest

from cardwise.doctor.checks import CHECKS
from tests.conftest import ROOT

PAGES = ROOT / "docs" / "troubleshooting"
PARTS = ("**What it looks like.**", "**Evidence.**", "**Likely cause.**", "**What to do.**")


@pytest.mark.parametrize("check", CHECKS, ids=[check.code for check in CHECKS])
def test_a_check_has_a_page_with_its_title_its_evidence_its_cause_and_what_to_do(check):
    text = (PAGES / f"{check.code.lower()}.md").read_text()
    assert text.startswith(f"# {check.code}: {check.title}\n")
    assert [part for part in PARTS if part not in text] == []


def test_there_is_no_page_without_a_check():
    assert {path.stem.upper() for path in PAGES.glob("*.md")} == {check.code for check in CHECKS}


def test_codes_are_unique_in_order_and_the_names_of_their_files():
    assert [check.code for check in CHECKS] == sorted({check.code for check in CHECKS})
    for check in CHECKS:
        assert check.find.__module__.rpartition(".")[2].startswith(f"{check.code.lower()}_")


def test_what_a_check_explains_is_a_check_and_nothing_explains_what_explains_it():
    explains = {check.code: check.explains for check in CHECKS}
    assert set().union(*explains.values()) <= set(explains)
    for code, others in explains.items():
        assert not [other for other in others if code in explains[other]]


def test_checks_name_only_queries_that_are_asked():
    from cardwise.doctor.queries import QUERIES  # noqa: PLC0415

    sources = (ROOT / "src" / "cardwise" / "doctor").rglob("*.py")
    text = "\n".join(path.read_text() for path in sources if path.name != "queries.py")
    named = set(re.findall(r'metrics\.(?:of|values|last)\(\s*"(\w+)"', text))
    assert named <= set(QUERIES)
    assert len(named) > 10
