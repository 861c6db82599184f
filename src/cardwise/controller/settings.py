"""The controller's settings: one TOML file, read whole or refused with the key that is wrong.

::

    namespace = "cardwise-system"

    [prometheus]
    url = "http://prometheus.monitoring:9090"

    [preemption]
    grace-s = 60

Each loop has a table of its own, described where the loop is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from cardwise.adapters.prometheus import Prometheus, checked_url
from cardwise.config import DEFAULT_POLICY, policies_by_class
from cardwise.controller.consolidation.settings import OFF, ConsolidationSettings
from cardwise.controller.preemption.settings import PreemptionSettings
from cardwise.controller.prefetching import PrefetchSettings
from cardwise.controller.rescue.settings import RescueSettings
from cardwise.core.ledger import MakePolicies
from cardwise.errors import UserError
from cardwise.program_settings import Port, Seed, host_faults, name_faults, read_checked

WANT = "the controller's settings in TOML (see cardwise controller --help)"


class PrometheusSettings(msgspec.Struct, forbid_unknown_fields=True, rename="kebab", frozen=True):
    """Where services' metrics are. url: empty for none, then only schedules scale. token_file: of a bearer token."""

    url: str = ""
    token_file: str = ""
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=60)] = 10.0


class ScalingSettings(msgspec.Struct, forbid_unknown_fields=True, rename="kebab", frozen=True):
    """Whether ServicePolicies are applied."""

    enabled: bool = True


class QuotaSettings(msgspec.Struct, forbid_unknown_fields=True, rename="kebab", frozen=True):
    """The quota file whose windows are applied to Kueue's queues; empty for none."""

    file: str = ""


class Settings(msgspec.Struct, forbid_unknown_fields=True, rename="kebab", frozen=True):
    """Defaults serve a small cluster.

    host, port: of ``/metrics``, ``/healthz`` and ``/readyz``. policy: by latency class, as the scheduler has it: what
    would fit once others have gone is asked of the same policies.
    """

    namespace: str = "cardwise-system"
    lease: str = "cardwise-controller"
    host: str = "0.0.0.0"  # noqa: S104 - Prometheus and the kubelet come from elsewhere
    port: Port = 10262
    policy: dict[str, str] = msgspec.field(default_factory=lambda: dict(DEFAULT_POLICY))
    seed: Seed = 0
    prometheus: PrometheusSettings = msgspec.field(default_factory=PrometheusSettings)
    preemption: PreemptionSettings = msgspec.field(default_factory=PreemptionSettings)
    consolidation: ConsolidationSettings = msgspec.field(default_factory=ConsolidationSettings)
    rescue: RescueSettings = msgspec.field(default_factory=RescueSettings)
    prefetch: PrefetchSettings = msgspec.field(default_factory=PrefetchSettings)
    scaling: ScalingSettings = msgspec.field(default_factory=ScalingSettings)
    quota: QuotaSettings = msgspec.field(default_factory=QuotaSettings)


def read_settings(path: Path | None) -> Settings:
    """Read and check the file; defaults without one. Raises InputError that names the key."""
    return read_checked(path, WANT, Settings, _faults)


def policies_of(settings: Settings) -> MakePolicies:
    """How the ledger makes its policies. Raises UserError if one of the names is unknown."""
    return policies_by_class(settings.policy, settings.seed)


def consolidation_of(settings: Settings) -> ConsolidationSettings:
    """As it holds: nobody moves where the loop is off that moves them."""
    return settings.consolidation if settings.rescue.enabled else OFF


def prometheus_of(settings: Settings) -> Prometheus | None:
    """The Prometheus that is told, None if none is. Raises UserError if it, or its token, cannot be used."""
    told = settings.prometheus
    if not told.url:
        return None
    token = Path(told.token_file) if told.token_file else None
    return Prometheus(told.url, token_file=token, timeout_s=told.timeout_s)


def _faults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Keys whose values no cluster and no resolver takes, and what to write instead."""
    yield from name_faults({"namespace": settings.namespace, "lease": settings.lease})
    yield from host_faults(settings.host)
    for key, check in (
        ("preemption", lambda: settings.preemption.brakes),
        ("rescue", lambda: (settings.rescue.policy, settings.rescue.patience)),
        ("prefetch", lambda: settings.prefetch.policy),
        ("policy", lambda: policies_of(settings)),
        ("prometheus.url", lambda: settings.prometheus.url and checked_url(settings.prometheus.url)),
    ):
        try:
            check()
        except (ValueError, UserError) as error:
            yield key, str(error)
    if settings.prometheus.token_file and not settings.prometheus.url:
        yield "prometheus.token-file", "needs a url"
