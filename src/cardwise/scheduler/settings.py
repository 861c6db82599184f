"""The scheduler's settings: one TOML file, read whole or refused with the key that is wrong.

::

    namespace = "cardwise-system"

    [policy]
    latency-sensitive = "balanced"
    best-effort = "dense"        # a name, or the path of a policy file that `cardwise tune` wrote
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from cardwise.config import DEFAULT_POLICY, policies_by_class
from cardwise.core.ledger import MakePolicies
from cardwise.files import seen
from cardwise.program_settings import Port, Seed, host_faults, name_faults, read_checked
from cardwise.scheduler.engines import EnginePolicy

WANT = "the scheduler's settings in TOML (see cardwise scheduler --help)"


class Settings(msgspec.Struct, forbid_unknown_fields=True, rename="kebab", frozen=True):
    """Defaults serve a small cluster.

    host, port: where kube-scheduler finds the extender. webhook_port: 0 for no webhook; it needs ``tls_cert_file`` and
    ``tls_key_file``, which the extender then uses too. client_ca_file: who asks the extender must show a certificate of
    this authority; without it, whoever reaches the port may have pods bound. policy: by latency class. engine_policy:
    what becomes of the share that an engine is told, for pods that do not say (:class:`EnginePolicy`).
    """

    namespace: str = "cardwise-system"
    lease: str = "cardwise-scheduler"
    host: str = "0.0.0.0"  # noqa: S104 - kube-scheduler comes from another pod
    port: Port = 10260
    webhook_port: Port = 0
    tls_cert_file: str = ""
    tls_key_file: str = ""
    client_ca_file: str = ""
    policy: dict[str, str] = msgspec.field(default_factory=lambda: dict(DEFAULT_POLICY))
    engine_policy: str = EnginePolicy.REWRITE.value
    seed: Seed = 0


def read_settings(path: Path | None) -> Settings:
    """Read and check the file; defaults without one. Raises InputError that names the key."""
    return read_checked(path, WANT, Settings, _faults)


def _faults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Keys whose values no cluster, no resolver and no file system takes, and what to write instead."""
    texts = {key: text for key, text in msgspec.to_builtins(settings).items() if isinstance(text, str)}
    for key, text in {**texts, **{f"policy.{key}": text for key, text in settings.policy.items()}}.items():
        if not text.isprintable():
            yield key, f"{seen(text)} holds characters that cannot be seen; write it without"
    yield from name_faults({"namespace": settings.namespace, "lease": settings.lease})
    yield from host_faults(settings.host)
    known = [each.value for each in EnginePolicy]
    if settings.engine_policy not in known:
        yield "engine-policy", f"{seen(settings.engine_policy)} is no policy; write {', '.join(known)}"
    if settings.webhook_port and not (settings.tls_cert_file and settings.tls_key_file):
        yield "webhook-port", "the webhook needs tls-cert-file and tls-key-file"
    if settings.client_ca_file and not settings.tls_cert_file:
        yield "client-ca-file", "needs tls-cert-file and tls-key-file"


def policies_of(settings: Settings) -> MakePolicies:
    """How the ledger makes its policies. Raises UserError if one of the names is unknown."""
    return policies_by_class(settings.policy, settings.seed)
