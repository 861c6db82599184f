"""The HTML report: complete, self-contained, safe to open, the same bytes for the same runs."""

import functools
import importlib
import json
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from cardwise import __version__
from cardwise.core.history import History, PodRecord
from cardwise.core.reasons import WORDINGS, Code
from cardwise.errors import UserError
from cardwise.replay.html import render_report, write_report
from cardwise.replay.outcome import Leftover, Replayed, Run
from cardwise.replay.plots import spread_out
from cardwise.replay.verdict import PARTS, common_ground, headline, parts, rank
from tests.builders import node, pod

VOID = {"meta", "link", "br", "hr", "img", "input", "wbr"}
NAMESPACES = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
LEFTOVER = Leftover(rounded_up=1.5, cpu=2.0, memory=0.0, fragments=3.25, model=0.0, usable=0.25)


def run(policy="dense", seed=1, idle_cards=7.0, **more):
    """A run on 100 cards, of which the policy leaves ``idle_cards``."""
    figures = {
        "regime": "fill",
        "load": 1.3,
        "cards_total": 100,
        "allocated_share": 1.0 - idle_cards / 100,
        "unallocated_cards": idle_cards,
        "refused_share": 0.25,
        "pods_arrived": 1200,
        "pods_placed": 1100,
        "decision_us_p50": 350.0,
        "decision_us_p99": 1750.0,
        "wall_s": 2.5,
    }
    return Run(policy=policy, seed=seed, **figures | more)


def replayed(policy="dense", seed=1, idle_cards=7.0, free_milli=(1000, 400, 50, 0, 0), refused_for=None, **more):
    """One run with a curve that follows what arrives until the policy is full."""
    arrived = np.linspace(0.01, more.get("load", 1.3), 50)
    return Replayed(
        run=run(policy, seed, idle_cards, **more),
        arrived_share=arrived,
        allocated_share=np.minimum(arrived, 1.0 - idle_cards / 100),
        free_milli=np.array(free_milli, np.int64),
        cards_used=98,
        leftover=LEFTOVER,
        refused_for={Code.NODE_CPU: 20.0, Code.CARD_MEMORY: 5.5} if refused_for is None else refused_for,
    )


def history(source="pods.csv on nodes.csv", notes=()):
    return History(source, (node("n0"), node("n1")), (PodRecord(pod("p0")),), notes)


def three_policies(**more):
    return [
        replayed("whole-card", idle_cards=31.0, **more),
        replayed("dense", idle_cards=3.0, **more),
        replayed("best-fit", idle_cards=9.0, **more),
    ]


class Page(HTMLParser):
    """What a browser would see: tags left open, text outside of scripts and styles, the JSON block, ids."""

    def __init__(self, text):
        super().__init__()
        self.open, self.misnested, self.tags, self.ids, self.text = [], [], [], [], ""
        self.attributes, self.json = [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        self.text += "" if tag == "code" else " "
        if not self.open or self.open.pop() != tag:
            self.misnested.append(tag)

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.json += data
        elif self.open and self.open[-1] != "style":
            self.text += data

    @property
    def words(self):
        return " ".join(self.text.split())


@functools.cache
def plain_report():
    """Three policies on one seed; drawn once, for most tests look at nothing else."""
    return render_report(three_policies(), history())


def page(results=None, told=None):
    if results is None and told is None:
        return Page(plain_report())
    return Page(render_report(results or three_policies(), told or history()))


# ---------------------------------------------------------------- the page as a file


def test_every_tag_is_closed_in_its_place():
    seen = page()
    assert (seen.open, seen.misnested) == ([], [])


def test_no_two_elements_share_an_id():
    seen = page()
    assert len(seen.ids) == len(set(seen.ids))


def test_every_reference_inside_the_page_has_a_target():
    text = plain_report()
    wanted = set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', text))
    assert {first or second for first, second in wanted} <= set(Page(text).ids)


def test_nothing_is_loaded_from_anywhere():
    text = plain_report()
    assert set(re.findall(r"https?://[^\s\"'<)]+", text)) <= NAMESPACES
    assert not re.search(r"""(?:src|href)=["'](?!#|data:image/png)|@import|url\((?!#)""", text)


def test_the_only_script_is_data():
    assert page().tags.count("script") == 1
    assert ("type", "application/json") in page().attributes


def test_the_same_runs_give_the_same_bytes(tmp_path):
    write_report(three_policies(), history(), tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == plain_report().encode()


def test_eight_policies_on_a_production_cluster_stay_small():
    free = np.random.default_rng(1).integers(0, 1001, 6212)
    results = [replayed(f"policy-{i}", idle_cards=3.0 + i, free_milli=free) for i in range(8)]
    assert len(render_report(results, history()).encode()) < 1_500_000


# ---------------------------------------------------------------- what it says


@pytest.mark.parametrize(
    ("results", "sentence"),
    [
        pytest.param(
            three_policies(), "dense leaves 3 of 100 cards unusable; best-fit 9; whole-card 31.", id="fill names all"
        ),
        pytest.param([replayed()], "dense leaves 7 of 100 cards unusable.", id="fill, one policy"),
        pytest.param(
            [replayed(f"p{i}", idle_cards=float(i)) for i in range(1, 7)],
            "p1 leaves 1 of 100 cards unusable; p2, the next, 2; p6, the last, 6.",
            id="fill, too many to name",
        ),
        pytest.param(
            [replayed(name, idle_cards=0.0) for name in ("a", "b", "c")],
            "All policies leave 0 of 100 cards unusable.",
            id="fill, all alike",
        ),
        pytest.param(
            [replayed("a", idle_cards=0.0), replayed("b", idle_cards=0.1)],
            "Both policies leave 0 of 100 cards unusable.",
            id="fill, both alike as written",
        ),
        pytest.param(
            [replayed(load=0.5, idle_cards=50.0)],
            "dense leaves 50 of 100 cards not allocated.",
            id="fill that asks for too little to call a card unusable",
        ),
        pytest.param(
            [
                replayed("a", regime="churn", load=0.9, refused_share=0.02),
                replayed("b", regime="churn", load=0.9, refused_share=0.01),
            ],
            "b refuses 1.00 % of the GPU asked for; a 2.00 %.",
            id="churn ranks by refusals",
        ),
        pytest.param(
            [replayed(name, regime="trace", load=0.4, refused_share=0.0) for name in ("a", "b")],
            "Every policy places all that is asked for: a load of 0.40 does not tell them apart.",
            id="nothing refused",
        ),
        pytest.param(
            [replayed(regime="trace", load=0.4, refused_share=0.0)],
            "dense places all that is asked for.",
            id="nothing refused, one policy",
        ),
    ],
)
def test_the_headline_is_the_result(results, sentence):
    ground = common_ground(results)
    assert headline(rank(results, ground), ground) == sentence


def test_the_headline_is_the_title_and_the_first_heading():
    assert page().words.count("dense leaves 3 of 100 cards unusable; best-fit 9; whole-card 31.") == 2


def test_the_lead_counts_what_the_best_saves():
    assert "dense puts 28 more cards to work than whole-card: 28.0 % of the cluster." in page().words


def test_policies_are_listed_best_first():
    text = page().words
    table = text[text.index("Policies, best first") :]
    assert table.index("dense") < table.index("best-fit") < table.index("whole-card")


def test_all_policies_have_all_their_figures():
    text = page().words
    for figure in ("dense 3 97.00 %", "best-fit 9 91.00 %", "whole-card 31 69.00 %"):
        assert f"{figure} 25.00 % 1,100 350 µs 1.8 ms" in text


def test_several_seeds_show_their_mean_and_range():
    results = [replayed(seed=seed, idle_cards=idle) for seed, idle in ((1, 4.0), (2, 6.0))]
    assert "5 4 – 6 95.00 % 94.00 – 96.00 %" in page(results).words


def test_each_plot_can_be_read_aloud():
    told = [value for name, value in page().attributes if name == "aria-label"]
    assert "Bar chart of cards unusable: dense 3, best-fit 9, whole-card 31." in told
    assert len(told) == page().tags.count("svg") == 7


def test_every_part_of_the_leftover_is_shown_with_its_cards():
    text = page([replayed()]).words
    for part in parts():
        assert f"{part.label} {part.meaning} {getattr(LEFTOVER, part.name):,.1f}" in text


def test_a_part_without_words_is_shown_by_its_name(monkeypatch):
    monkeypatch.delitem(PARTS, "rounded_up")
    assert "rounded up 1.5" in page([replayed()]).words


def test_refusals_say_what_helps():
    text = page([replayed()]).words
    for code, cards in ((Code.NODE_CPU, "20.0"), (Code.CARD_MEMORY, "5.5")):
        assert f"{WORDINGS[code].short} {WORDINGS[code].advice} ({code.value}) {cards}" in text


def test_more_reasons_than_the_plot_holds_are_in_the_table_and_said_to_be():
    text = page([replayed(refused_for=dict.fromkeys(Code, 1.0))]).words
    assert "The 5 costliest reasons; the table has all." in text
    assert all(f"({code.value}) 1.0" in text for code in Code)


def test_assumptions_source_and_version_are_told():
    text = page(told=history(notes=("No card memory is known.",))).words
    for words in ("No card memory is known.", "pods.csv on nodes.csv", f"cardwise {__version__}"):
        assert words in text


def test_the_json_block_is_the_runs():
    results = three_policies()
    names = Run.__dataclass_fields__
    expected = [{name: getattr(each.run, name) for name in names} for each in results]
    assert json.loads(page(results).json) == {"runs": expected}


# ---------------------------------------------------------------- hostile and unusual input


@pytest.mark.parametrize(
    ("results", "told"),
    [
        pytest.param(three_policies(), history("<script>alert(1)</script>"), id="source"),
        pytest.param(three_policies(), history(notes=("<script>alert(1)</script>",)), id="note"),
        pytest.param([replayed("<script>alert(1)</script>"), replayed('"&</svg>')], history(), id="policy"),
        pytest.param([replayed("</script><script>alert(1)</script>")], history(), id="policy in the JSON"),
    ],
)
def test_markup_in_the_input_stays_text(results, told):
    text = render_report(results, told)
    seen = Page(text)
    assert seen.tags.count("script") == 1
    assert "<script>" not in text
    assert (seen.open, seen.misnested) == ([], [])


@pytest.mark.parametrize(
    "results",
    [
        pytest.param([replayed()], id="one policy, one seed"),
        pytest.param([replayed(regime="trace", load=0.2)], id="trace"),
        pytest.param([replayed(regime="churn", load=0.9)], id="churn"),
        pytest.param([replayed(refused_for={}, refused_share=0.0)], id="nothing refused"),
        pytest.param([replayed(free_milli=[0, 0, 0])], id="no free card"),
        pytest.param([replayed(free_milli=[1000])], id="one card"),
        pytest.param([replayed(idle_cards=0.0)], id="nothing left over"),
        pytest.param([replayed(idle_cards=100.0)], id="nothing placed"),
        pytest.param([replayed("a$b$_"), replayed("配置")], id="names that fonts or formulas trip over"),
        pytest.param([replayed(f"policy-{i}") for i in range(11)], id="more policies than colours"),
        pytest.param([replayed(seed=1), replayed(seed=2), replayed("b", seed=1)], id="unequal seeds"),
    ],
)
def test_unusual_runs_give_a_page_too(results):
    seen = page(results)
    assert all(each.run.policy in seen.words for each in results)


def test_a_history_of_a_single_moment_is_drawn():
    single = replayed(regime="trace")
    moment = Replayed(single.run, np.zeros(1), np.zeros(1), single.free_milli, 0, LEFTOVER, {})
    assert "seconds since the first pod" in page([moment]).words


@pytest.mark.parametrize(
    "results",
    [
        pytest.param([], id="none"),
        pytest.param([replayed(), replayed("b", load=1.0)], id="loads"),
        pytest.param([replayed(), replayed("b", cards_total=7)], id="clusters"),
        pytest.param([replayed(), replayed("b", regime="churn")], id="regimes"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(results):
    with pytest.raises(ValueError, match="runs of one regime, load and cluster are needed"):
        render_report(results, history())


@pytest.mark.parametrize("count", [1, 2, 5])
def test_labels_of_equal_curves_are_spread_around_them(count):
    places = spread_out([0.5] * count, 0.1)
    assert np.diff(places) == pytest.approx([0.1] * (count - 1))
    assert sum(places) / count == pytest.approx(0.5)


# ---------------------------------------------------------------- writing


def test_a_report_replaces_the_one_before_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    write_report(three_policies(), history(), path)
    assert path.read_text(encoding="utf-8") == plain_report()
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_named_and_nothing_is_left_behind(tmp_path):
    path = tmp_path / "missing" / "report.html"
    with pytest.raises(UserError, match=r"report\.html: cannot be written .*give a file in a folder that exists"):
        write_report([replayed()], history(), path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_not_taken_for_a_file(tmp_path):
    with pytest.raises(UserError, match="is a directory; give the name of a file"):
        write_report([replayed()], history(), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("library", ["jinja2", "matplotlib"])
def test_a_missing_library_says_how_to_install_it(monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, "cardwise.report")
    monkeypatch.delitem(sys.modules, "cardwise.replay.html")
    monkeypatch.delitem(sys.modules, "cardwise.replay.plots")
    monkeypatch.delattr("cardwise.replay.plots")
    with pytest.raises(UserError, match=r"pip install 'cardwise\[tools\]'"):
        importlib.import_module("cardwise.replay.html")
