"""Who reads the news gets each change once, in order; who is too slow is told so."""

from __future__ import annotations

import msgspec
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from cardwise.web.changes import applied
from cardwise.web.news import MOST_BEHIND, News


class Source:
    """A state to change. asked: how often it was asked for."""

    def __init__(self):
        self.state, self.asked = {"version": 1, "nodes": [], "summary": 0}, 0

    def latest(self):
        self.asked += 1
        return self.state

    def change(self, summary):
        self.state = {**self.state, "version": self.state["version"] + 1, "summary": summary}


def heard(reader):
    """What a reader has before it: names and contents."""
    told = []
    while not reader.empty():
        name, data = reader.get_nowait().decode().strip().split("\n")
        told.append((name.removeprefix("event: "), msgspec.json.decode(data.removeprefix("data: "))))
    return told


def test_nothing_is_worked_out_while_nobody_reads():
    source = Source()
    news = News(source.latest)
    news.look()
    assert source.asked == 0


def test_a_reader_hears_what_is_shown_and_then_each_change():
    source = Source()
    news = News(source.latest)
    reader = news.join()
    shown = news.shown()
    source.change(5)
    news.look()
    news.look()
    (hello, (name, change)) = heard(reader)
    assert hello == ("hello", {"version": 1})
    assert (name, applied(shown, change)) == ("change", source.state)


def test_what_is_shown_is_what_the_next_change_is_from():
    """Else who came between two looks would miss what went and came back between them."""
    source = Source()
    news = News(source.latest)
    reader = news.join()
    source.change(7)
    fetched = news.shown()
    source.change(0)
    news.look()
    (_, change) = heard(reader)[-1]
    assert change["base"] == fetched["version"]
    assert applied(fetched, change) == source.state


def test_after_the_last_reader_left_the_next_one_sees_the_latest_state():
    source = Source()
    news = News(source.latest)
    news.leave(news.join())
    source.change(3)
    news.look()
    assert heard(news.join()) == [("hello", {"version": 2})]


def test_a_reader_that_is_too_far_behind_is_told_to_fetch_everything():
    source = Source()
    news = News(source.latest)
    reader = news.join()
    for i in range(MOST_BEHIND):
        source.change(i)
        news.look()
    assert heard(reader) == [("again", {})]
    source.change(99)
    news.look()
    assert [name for name, _ in heard(reader)] == ["change"]


def test_closing_ends_every_stream_at_once():
    source = Source()
    news = News(source.latest)
    reader = news.join()
    source.change(1)
    news.look()
    news.close()
    assert reader.get_nowait() is None


async def test_a_reader_to_whom_nothing_is_new_hears_so(monkeypatch):
    """As an event: a script does not hear comments, and could not tell a quiet cluster from a dead connection."""
    monkeypatch.setattr("cardwise.web.news.BREATH_S", 0.01)
    news = News(Source().latest)
    app = web.Application()
    app.router.add_get("/events", news.answer)
    async with TestClient(TestServer(app)) as http:
        stream = (await http.get("/events")).content
        told = [(await stream.readuntil(b"\n\n")).splitlines()[0] for _ in range(3)]
        assert told == [b"event: hello", b"event: still", b"event: still"]
        news.close()
