"""MIG: slices meet profiles, instances never overlap, and what is in use stays."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.core.card.facts import MigInstance
from cardwise.core.card.mig import TABLES, Creation, Held, Match, Plan, Refusal, knows_mig, match, place, plan, table_of

A100 = {each.name: each for each in TABLES["A100-40"]}
cards = st.sampled_from(sorted(TABLES)).map(TABLES.get)


def made(profile, start):
    return Creation(profile.name, profile.profile_id, start, profile.size)


def held(profile, start, *, in_use=False, by=()):
    instance = MigInstance(f"MIG-{start}", profile.name, profile.memory_mib, start, 0, start, profile.size)
    return Held(instance, in_use, by)


def apart(spans):
    return all(one.isdisjoint(other) for one, other in combinations(spans, 2))


def spans(instances):
    return [frozenset(range(each.start, each.start + each.size)) for each in instances]


def fill(order, profiles):
    there = []
    for profile in order:
        if (start := place(there, profile, profiles)) is not None:
            there.append(made(profile, start))
    return there


# ---------------------------------------------------------------- tables


@pytest.mark.parametrize("profiles", TABLES.values(), ids=TABLES)
def test_a_table_has_as_many_disjoint_starts_as_it_says(profiles):
    for each in profiles:
        assert len(fill([each] * 9, profiles)) == each.most
        assert max(each.starts) + each.size <= max(other.size for other in profiles)


@pytest.mark.parametrize(
    ("model", "largest"),
    [
        ("NVIDIA A100-SXM4-40GB", "7g.40gb"),
        ("NVIDIA A100 80GB PCIe", "7g.80gb"),
        ("NVIDIA H100 80GB HBM3", "7g.80gb"),
        ("NVIDIA H200", "7g.141gb"),
        ("NVIDIA B200", "7g.180gb"),
        ("NVIDIA A30", "4g.24gb"),
    ],
)
def test_a_table_is_found_by_the_name_that_the_driver_tells(model, largest):
    assert table_of(model)[-1].name == largest
    assert knows_mig(model)


@pytest.mark.parametrize("model", ["NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA A100", "NVIDIA A10", "Tesla T4", ""])
def test_no_table_is_guessed(model):
    assert table_of(model) == ()


@pytest.mark.parametrize(
    ("model", "can"),
    [
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", True),
        ("NVIDIA GH200 480GB", True),
        ("NVIDIA RTX A6000", False),
        ("NVIDIA A10", False),
    ],
)
def test_mig_is_known_of_by_whole_words(model, can):
    assert knows_mig(model) is can


# ---------------------------------------------------------------- a slice


@pytest.mark.parametrize(
    ("memory_mib", "pct", "name", "waste_mib", "waste_pct"),
    [
        pytest.param(4096, 14, "1g.5gb", 768, 0, id="a seventh"),
        pytest.param(4096, 20, "2g.10gb", 5760, 8, id="compute decides"),
        pytest.param(9000, 10, "1g.10gb", 856, 4, id="memory decides: a 1g with twice the memory before a 2g"),
        pytest.param(19000, 50, "4g.20gb", 968, 7, id="half"),
        pytest.param(40192, 100, "7g.40gb", 0, 0, id="all"),
    ],
)
def test_the_smallest_profile_that_holds_a_slice_and_its_waste(memory_mib, pct, name, waste_mib, waste_pct):
    found = match(memory_mib, pct, A100.values())
    assert isinstance(found, Match)
    assert (found.profile.name, found.waste_mib, found.waste_pct) == (name, waste_mib, waste_pct)


def test_a_plain_profile_comes_before_one_with_media_engines():
    plain = A100["1g.5gb"]
    media = type(plain)("1g.5gb+me", 20, plain.memory_mib, plain.sms, 1, plain.starts, 1)
    found = match(1000, 1, [media, plain])
    assert isinstance(found, Match)
    assert found.profile is plain


def test_what_no_profile_holds_is_refused_with_the_largest():
    assert match(50000, 1, A100.values()) == Refusal(
        "no profile holds 50000 MiB and 1 %: the largest, 7g.40gb, has 40192 MiB"
    )
    assert match(1, 1, ()) == Refusal("the card has no MIG profiles")


@given(cards, st.integers(0, 200_000), st.integers(0, 100))
def test_a_match_holds_the_slice(profiles, memory_mib, pct):
    found = match(memory_mib, pct, profiles)
    if isinstance(found, Match):
        assert found.profile.memory_mib - found.waste_mib == memory_mib
        assert found.waste_mib >= 0
        assert found.waste_pct >= 0


# ---------------------------------------------------------------- a placement


def test_a_small_instance_leaves_the_place_of_the_large_ones():
    assert place([], A100["1g.5gb"], A100.values()) == 6
    assert place([], A100["3g.20gb"], A100.values()) == 4


def test_a_three_and_a_four_fill_a_card():
    three = made(A100["3g.20gb"], 4)
    assert place([three], A100["4g.20gb"], A100.values()) == 0
    assert place([three, made(A100["4g.20gb"], 0)], A100["1g.5gb"], A100.values()) is None


def test_no_more_than_the_profile_allows():
    assert place([made(A100["4g.20gb"], 0)], A100["4g.20gb"], A100.values()) is None


@given(st.data(), cards)
def test_instances_never_overlap_and_never_exceed_the_count(data, profiles):
    there = fill(data.draw(st.lists(st.sampled_from(profiles), max_size=12)), profiles)
    assert apart(spans(there))
    for each in profiles:
        assert sum(one.profile == each.name for one in there) <= each.most


# ---------------------------------------------------------------- a layout


def test_an_empty_card_is_laid_out_largest_first():
    wanted = [A100["1g.5gb"], A100["4g.20gb"], A100["2g.10gb"]]
    assert plan([], wanted, A100.values()) == Plan(
        (), (made(A100["4g.20gb"], 0), made(A100["2g.10gb"], 4), made(A100["1g.5gb"], 6))
    )


def test_what_is_in_use_stays_and_the_idle_goes():
    there = [held(A100["3g.20gb"], 4, in_use=True), held(A100["1g.5gb"], 0), held(A100["1g.5gb"], 1)]
    assert plan(there, [A100["4g.20gb"], A100["3g.20gb"]], A100.values()) == Plan(
        ("MIG-0", "MIG-1"), (made(A100["4g.20gb"], 0),)
    )


def test_an_idle_instance_that_is_wanted_stays():
    there = [held(A100["1g.5gb"], 2), held(A100["2g.10gb"], 4)]
    assert plan(there, [A100["2g.10gb"], A100["1g.5gb"]], A100.values()) == Plan((), ())


def test_an_instance_in_use_that_is_not_wanted_refuses_by_name():
    there = [held(A100["7g.40gb"], 0, in_use=True, by=("shop/llama-0",))]
    refused = plan(there, [A100["1g.5gb"]], A100.values())
    assert isinstance(refused, Refusal)
    assert refused.in_use == ("7g.40gb at 0 (MIG-0) by shop/llama-0",)
    assert refused.text == ("not wanted, but in use: 7g.40gb at 0 (MIG-0) by shop/llama-0. Move what uses it first")


def test_a_layout_that_does_not_fit_around_what_is_in_use_names_it():
    there = [held(A100["1g.5gb"], 0, in_use=True, by=("a/b",))]
    refused = plan(there, [A100["1g.5gb"], A100["4g.20gb"]], A100.values())
    assert isinstance(refused, Refusal)
    assert refused.text == "1g.5gb, 4g.20gb do not fit around what is in use: 1g.5gb at 0 (MIG-0) by a/b"


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["4g.20gb", "4g.20gb"], "a card holds at most 1 of 4g.20gb, 2 are wanted"),
        (["7g.40gb", "1g.5gb"], "7g.40gb, 1g.5gb do not fit one card together"),
    ],
)
def test_a_layout_that_no_card_has_is_refused(names, text):
    assert plan([], [A100[name] for name in names], A100.values()) == Refusal(text)


@given(st.data(), cards)
def test_a_plan_never_touches_what_is_in_use_and_ends_at_what_is_wanted(data, profiles):
    by_name = {each.name: each for each in profiles}
    standing = fill(data.draw(st.lists(st.sampled_from(profiles), max_size=8)), profiles)
    current = [held(by_name[each.profile], each.start, in_use=data.draw(st.booleans())) for each in standing]
    wanted = data.draw(st.lists(st.sampled_from(profiles), max_size=5))
    made_up = plan(current, wanted, profiles)
    used = [each for each in current if each.in_use]
    if isinstance(made_up, Refusal):
        assert made_up.text
        assert set(made_up.in_use) <= {each.told for each in used}
        return
    assert set(made_up.destroy).isdisjoint(each.instance.uuid for each in used)
    after = [each.instance for each in current if each.instance.uuid not in made_up.destroy] + [*made_up.create]
    assert apart(spans(after))
    assert sorted(each.profile for each in after) == sorted(each.name for each in wanted)


@given(st.data(), cards)
def test_a_full_card_in_use_refuses_with_all_their_names(data, profiles):
    one = data.draw(st.sampled_from(profiles))
    there = [held(one, each.start, in_use=True, by=(f"ns/{each.start}",)) for each in fill([one] * one.most, profiles)]
    other = data.draw(st.sampled_from([each for each in profiles if each is not one]))
    refused = plan(there, [other], profiles)
    assert isinstance(refused, Refusal)
    assert refused.in_use == tuple(each.told for each in there)
