"""Which cluster a command speaks with: the options that say so, and a client for as long as it takes."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from cardwise.adapters.kube.client import KubeClient

_AnswerT = TypeVar("_AnswerT")
F = TypeVar("F", bound=Callable[..., Any])
ANY_PATH = click.Path(path_type=Path)
_KUBECONFIG_HELP = "Default: in-cluster account, else $KUBECONFIG."


@dataclass(frozen=True, slots=True)
class ClusterInput:
    """What the user said of the cluster."""

    kubeconfig: Path | None
    context: str | None

    def ask(self, work: Callable[[KubeClient], Awaitable[_AnswerT]]) -> _AnswerT:
        """What comes of some work with a client. Raises UserError if there is no way to a cluster."""
        from cardwise.adapters.kube.client import connect  # noqa: PLC0415 - other commands start without HTTP libraries

        async def main() -> _AnswerT:
            async with connect(self.kubeconfig, self.context) as client:
                return await work(client)

        return asyncio.run(main())


def cluster_options(path: click.Path = ANY_PATH) -> Callable[[F], F]:
    """Add the options and pass them to the command as one ``cluster``. path: what the kubeconfig's may be."""

    def add(command: F) -> F:
        @functools.wraps(command)
        def wrapped(kubeconfig: Path | None, context: str | None, **rest: object) -> object:
            return command(cluster=ClusterInput(kubeconfig, context), **rest)

        kubeconfig_option = click.option("--kubeconfig", type=path, help=_KUBECONFIG_HELP)
        return kubeconfig_option(click.option("--context", help="Context of the kubeconfig.")(wrapped))  # type: ignore[return-value]

    return add


def replica_options(command: F) -> F:
    """Add the options of a program of which several replicas run and one leads."""
    told = click.option("--identity", default="", help="Name in the lease; default: host name and process number.")(
        command
    )
    told = cluster_options()(told)
    return click.option("--config", "config", type=ANY_PATH, help="Settings in TOML; defaults without it.")(told)
