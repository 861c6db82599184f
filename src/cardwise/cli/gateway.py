"""``cardwise gateway``: what lets requests into the replicas of a service. Runs until it is told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import click


@click.command("gateway")
@click.option("--config", "config", type=click.Path(path_type=Path), required=True, help="Settings in TOML.")
@click.option("--check", is_flag=True, help="Only check the settings.")
def gateway_command(config: Path, *, check: bool) -> None:
    """Queue, batch and limit what enters the replicas of services, and tell the rest at once when to come again."""
    from cardwise.gateway.settings import read_settings  # noqa: PLC0415 - other commands start without it

    settings = read_settings(config)
    if check:
        click.echo(f"{config}: {len(settings.services)} service(s), fine")
        return
    from cardwise.gateway.main import run  # noqa: PLC0415
    from cardwise.process import log_as_json  # noqa: PLC0415

    log_as_json()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(run(settings, _tell))


def _tell(where: str) -> None:
    """On stdout at once: a script that starts us waits for this line."""
    click.echo(where)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """That of uvloop where it runs: half the cost of a request."""
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:  # not made for this system
        return None
    return uvloop.new_event_loop
