"""Which history a command takes where none is given."""

from __future__ import annotations

from cardwise.cli.inputs import HistoryInput, load_history


def test_a_history_that_is_made_up_says_so_first_and_how_to_give_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CARDWISE_OPENB", raising=False)
    first = load_history(HistoryInput(None, None, None, (), ())).notes[0]
    assert "made up" in first
    assert "--dump FILE" in first
    assert "CARDWISE_OPENB=FOLDER" in first
