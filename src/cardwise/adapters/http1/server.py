"""The server's side of HTTP/1.1: hands out the head of a request before its body, so that it can be refused early.

Requests of one connection are answered in order; one after the first is read, but not handed out, before the first is
answered. A body is read whole, up to a limit; an answer is whole or a stream, and who writes it sees when the client
reads slower. A client that hangs up, also half (as nginx sees it), is told of at once.

Every limit is on by default: sizes, counts, time for a head, for a body and for reading an answer. What could be read
in two ways (both lengths, folded lines, bare line feeds) is refused by the strict parser. Refuses TLS, trailers and
protocols to upgrade to: such an offer is read over, as RFC 9110 allows.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import cast

from cardwise.adapters.http1.connection import Connection
from cardwise.adapters.http1.exchange import Handler
from cardwise.adapters.http1.faults import Fault
from cardwise.adapters.http1.limits import Limits
from cardwise.errors import UserError
from cardwise.files import plain

_SWEEP_S = 0.5
_BACKLOG = 4096
"""Connections the kernel keeps while the loop is busy; with the usual 128 clients wait for retransmissions."""
_STORM_PER_S, _CALM_PER_S = 5000, 1250
"""Clients sent away per second beyond which those that do not listen are slowed down (a quarter of a core goes into
it), and below which it is over: slowing them down must not end it. Not sooner, for a connection may be many clients':
they hear late then, and those who get a place wait for longer."""


class Server:
    """Listens, and hands requests to one handler."""

    def __init__(self, handler: Handler, limits: Limits | None = None) -> None:
        """Nothing listens yet."""
        self.handler = handler
        self.limits = limits or Limits()
        self.connections: set[Connection] = set()
        self.turned_away: set[Connection] = set()
        """Those too many, until their clients have read so."""
        self.is_leaving = False
        """Answers say that their connection closes, so that clients that keep theirs go elsewhere."""
        self.is_draining = False
        self.grace_s = 0.0
        """When draining: of a connection that its client believes to be kept."""
        self.buffered = 0
        """Bytes of bodies that are held."""
        self.sent_away = 0
        """Since the last sweep."""
        self.is_storm = False
        """Whether very many were, before it."""
        self.faults: Counter[Fault] = Counter()
        """What was refused here, so that it is seen: the handler hears of none of it."""
        self._server: asyncio.Server | None = None
        self._sweeping: asyncio.TimerHandle | None = None

    async def listen(self, host: str, port: int) -> int:
        """The port that was taken, of use where 0 was asked for. Raises UserError if it is not to be had."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: Connection(self), host, port, backlog=_BACKLOG)
        except (OSError, ValueError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else exc
            raise UserError(f"cannot listen on {plain(host)}:{port}: {why}; choose another host or port") from exc
        self._sweeping = loop.call_later(_SWEEP_S, self._sweep)
        return cast("int", self._server.sockets[0].getsockname()[1])

    def stop_accepting(self, grace_s: float = 0.0) -> None:
        """Close the port; connections that wait for a request close after so long, the others after their answer.

        A request that is on its way when its connection closes is lost without a word, and within the grace is not.
        """
        self.is_draining = self.is_leaving = True
        self.grace_s = grace_s
        if self._server is not None:
            self._server.close()
            self._server = None
        for each in tuple(self.connections):
            each.close_if_idle()

    async def drained(self, most_s: float) -> bool:
        """Wait until all that is being answered is answered, at most so long; whether it is."""
        until_s = time.monotonic() + most_s
        while self.connections and time.monotonic() < until_s:
            await asyncio.sleep(0.01)
        return not self.connections

    def close(self) -> None:
        """End at once."""
        self.stop_accepting()
        if self._sweeping is not None:
            self._sweeping.cancel()
        for each in (*self.connections, *self.turned_away):
            each.abort()

    def _sweep(self) -> None:
        """Look for clients that are out of time: one pass for all is cheaper than a timer for each."""
        now_s = time.monotonic()
        self.is_storm = self.sent_away > (_CALM_PER_S if self.is_storm else _STORM_PER_S) * _SWEEP_S
        self.sent_away = 0
        for some in (self.connections, self.turned_away):
            for each in [each for each in some if each.until_s < now_s]:
                each.expire()
        self._sweeping = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)
