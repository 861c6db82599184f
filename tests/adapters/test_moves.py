"""What stands in objects of a move is read back as it was written, and nothing else is believed."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from cardwise.adapters import wire
from cardwise.adapters.kube_objects import Node, Pod
from cardwise.adapters.moves import MOST_LINES, Moving, encode_moves, encode_moving, moves_of, moving_of
from cardwise.core.fleet.rescue import Moved

MOVING = Moving(1_700_000_000.5, 2, "ns/web", "uid-rs", "abc")


def carrying(kind, key, text):
    return msgspec.convert({"metadata": {"name": "x", "annotations": {key: text} if text is not None else {}}}, kind)


def test_the_mark_of_a_release_is_read_back():
    assert moving_of(carrying(Pod, wire.ANNOTATION_MOVING, encode_moving(MOVING))) == MOVING
    assert moving_of(carrying(Pod, wire.ANNOTATION_MOVING, None)) is None
    aside = replace(MOVING, aside=True)
    assert moving_of(carrying(Pod, wire.ANNOTATION_MOVING, encode_moving(aside))) == aside
    assert "aside" not in encode_moving(MOVING), "a program of before reads it"


def test_moves_are_read_back_and_only_the_newest_are_kept():
    moves = [Moved(float(i), f"u{i}", "ns/web", vain=i % 2 == 0) for i in range(MOST_LINES + 5)]
    told = moves_of(carrying(Node, wire.ANNOTATION_MOVES, encode_moves(reversed(moves))))
    assert told == tuple(moves[5:])
    assert moves_of(carrying(Node, wire.ANNOTATION_MOVES, None)) == ()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"v":1}', '{"v":1,"at":"now"}'])
def test_a_mark_that_is_not_ours_is_refused_by_name(text):
    with pytest.raises(ValueError, match=r"cardwise\.dev/moving is not readable"):
        moving_of(carrying(Pod, wire.ANNOTATION_MOVING, text))


def test_a_mark_of_another_version_is_refused():
    text = encode_moving(MOVING).replace('"v":1', '"v":9')
    with pytest.raises(ValueError, match="version 9, this program reads 1"):
        moving_of(carrying(Pod, wire.ANNOTATION_MOVING, text))
