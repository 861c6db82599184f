"""Logs of programs: one JSON object a line, times in UTC wherever the machine stands, also what libraries say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

SAYS = {
    "ours": "structlog.get_logger().warning('said', node='n0')",
    "a library's": "logging.getLogger('asyncio').error('said %s', 'so')",
    "a warning": "warnings.warn('said', stacklevel=1)",
    "a traceback": "try: 1 / 0\n    except ZeroDivisionError: logging.getLogger('aiohttp').exception('said')",
}


def lines(statement):
    """What a program logs that does this, in another time zone."""
    program = f"""
import logging, warnings, structlog
from cardwise.process import log_as_json
def main():
    log_as_json()
    {statement}
main()
"""
    env = {**os.environ, "TZ": "Asia/Shanghai"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env)
    assert done.stdout == ""
    return done.stderr.splitlines()


@pytest.mark.parametrize("statement", SAYS.values(), ids=SAYS)
def test_whatever_is_logged_is_one_json_object_with_its_time_in_utc(statement):
    """SPEC A9."""
    (line,) = lines(statement)
    told = json.loads(line)
    at = datetime.fromisoformat(told["timestamp"])
    assert told["timestamp"].endswith("Z")
    assert abs(datetime.now(UTC) - at) < timedelta(minutes=5)
    assert "said" in told["event"]
    assert told["level"] in {"warning", "error"}


@pytest.mark.parametrize("logger", ["structlog.get_logger()", "logging.getLogger('aiohttp')"])
def test_a_traceback_says_where_and_no_values_of_variables(logger):
    """A token in one of them would be in the log for all who may read that."""
    program = f"""token = 'let' + 'mein'
    try: [][token == 'x']
    except IndexError: {logger}.exception('said')"""
    (line,) = lines(program)
    assert "letmein" not in line
    (told,) = json.loads(line)["exception"]
    assert (told["exc_type"], told["frames"][0]["name"]) == ("IndexError", "main")


def test_what_libraries_tell_for_their_makers_is_left_out():
    assert lines("logging.getLogger('asyncio').debug('said'); structlog.get_logger().debug('said')") == []
