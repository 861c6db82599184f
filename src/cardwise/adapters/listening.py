"""Where the web applications of our programs listen."""

from __future__ import annotations

import ssl

from aiohttp import web

from cardwise.errors import UserError
from cardwise.files import plain


async def serve(
    app: web.Application, host: str, port: int, tls: ssl.SSLContext | None = None
) -> tuple[web.AppRunner, int]:
    """Start to listen; the runner to clean up, and the port that was taken (of use where 0 was asked for).

    Raises UserError if it cannot be had.
    """
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, host, port, ssl_context=tls)
    try:
        await site.start()
    except (OSError, ValueError) as exc:  # a ValueError: a host that no resolver is asked about
        await runner.cleanup()
        why = exc.strerror if isinstance(exc, OSError) else exc
        raise UserError(f"cannot listen on {plain(host)}:{port}: {why}; choose another host or port") from exc
    return runner, runner.addresses[0][1]
