"""The tables: every row has a source, and a user's row takes the place of ours."""

from __future__ import annotations

from dataclasses import fields

import pytest

from cardwise.adapters.inventory import known_card_mib
from cardwise.core.capacity.engines import ENGINES
from cardwise.core.capacity.memory import Overheads, Range
from cardwise.errors import InputError
from cardwise.plan.tables import tables

ROW = 'likely = 700\nlow = 600\nhigh = 800\nsource = "our agent, image x"\n'


def ranges(found: Overheads):
    for field in fields(found):
        value = getattr(found, field.name)
        yield from [value] if isinstance(value, Range) else value.values()


def test_every_row_has_a_source():
    assert all(each.source for each in ranges(tables().overheads))


def test_every_engine_that_has_a_profile_has_a_row():
    assert set(tables().engines) == set(ENGINES)


def test_a_row_of_the_users_takes_the_place_of_ours(tmp_path):
    (tmp_path / "mine.toml").write_text(f"[context_mib.hopper]\n{ROW}\n[nccl_mib]\n{ROW}")
    found = tables(tmp_path / "mine.toml").overheads
    assert found.context_mib["hopper"].likely == found.nccl_mib.likely == 700
    assert found.context_mib["ada"] == tables().overheads.context_mib["ada"]


def test_a_card_of_the_users_is_added(tmp_path):
    (tmp_path / "mine.toml").write_text('["My card"]\ngeneration = "ada"\nmemory_mib = 12288\ngbs = 500\n')
    assert tables(cards=tmp_path / "mine.toml").cards["My card"].usable_mib == 12288 - 640


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(f"[nothing]\n{ROW}", "nothing: is no row of this table", id="unknown row"),
        pytest.param("nccl_mib = 3\n", "nccl_mib: Expected", id="number"),
        pytest.param("[nccl_mib]\nlikely = 1\nlow = 2\nhigh = 3\n", "nccl_mib: must have 0 ≤ low ≤ likely", id="order"),
        pytest.param(f"[context_mib.next]\n{ROW}", "next: stands in only one of context_mib", id="half"),
        pytest.param("[nccl_mib\n", "is not TOML", id="not TOML"),
    ],
)
def test_a_wrong_row_is_named(tmp_path, text, message):
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(InputError, match=message):
        tables(tmp_path / "mine.toml")


def test_every_card_has_its_memory_from_the_one_table_that_all_commands_share():
    for name, card in tables().cards.items():
        assert card.memory_mib == known_card_mib(name)
