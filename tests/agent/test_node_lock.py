"""Two agents on one node: one works, the other waits and says so."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from cardwise.agent.node_lock import NodeLock
from cardwise.errors import UserError


async def test_a_second_agent_waits_says_so_once_and_takes_over_at_once(tmp_path):
    first, second, said = NodeLock(tmp_path / "state"), NodeLock(tmp_path / "state"), []
    await first.wait(said.append)
    assert said == []
    waiting = asyncio.ensure_future(second.wait(said.append, look_s=0.01))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    assert [text[:25] for text in said] == ["another agent runs here: "]
    first.close()
    await asyncio.wait_for(waiting, 10)
    second.close()


async def test_an_agent_that_ended_can_be_started_again(tmp_path):
    for _ in range(2):
        with contextlib.closing(NodeLock(tmp_path)) as lock:
            assert lock.take()


def test_a_state_folder_that_cannot_be_is_refused_with_what_to_do(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="give the agent a state-folder"):
        NodeLock(tmp_path / "file")
