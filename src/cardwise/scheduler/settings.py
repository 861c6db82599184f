"""The scheduler's settings: one TOML file, read whole or refused with the key that is wrong.

::

    namespace = "cardwise-system"

    [policy]
    latency-sensitive = "balanced"
    best-effort = "dense"        # a name, or the path of a policy file that `cardwise tune` wrote
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from cardwise.config import DEFAULT_POLICY, policies_by_class
from cardwise.core.ledger import MakePolicies
from cardwise.errors import InputError
from cardwise.files import seen
from cardwise.scheduler.engines import EnginePolicy
from cardwise.settings_file import read_settings_file

WANT = "the scheduler's settings in TOML (see cardwise scheduler --help)"

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


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
    if path is None:
        return Settings()
    settings = read_settings_file(path, WANT, Settings)
    for key, fault in _faults(settings):
        raise InputError(str(path), fault, field=key)
    return settings


def _faults(settings: Settings) -> Iterator[tuple[str, str]]:
    """Keys whose values no cluster, no resolver and no file system takes, and what to write instead."""
    texts = {key: text for key, text in msgspec.to_builtins(settings).items() if isinstance(text, str)}
    for key, text in {**texts, **{f"policy.{key}": text for key, text in settings.policy.items()}}.items():
        if not text.isprintable():
            yield key, f"{seen(text)} holds characters that cannot be seen; write it without"
    for key in ("namespace", "lease"):
        if not _NAME.fullmatch(texts[key]):
            yield (
                key,
                f"{seen(texts[key])} is no name; write lower-case letters, digits and '-', such as cardwise-system",
            )
    if not _is_host(settings.host):
        yield (
            "host",
            f"{seen(settings.host)} is no address to listen on; write 0.0.0.0 for all, or one of this machine's",
        )
    known = [each.value for each in EnginePolicy]
    if settings.engine_policy not in known:
        yield "engine-policy", f"{seen(settings.engine_policy)} is no policy; write {', '.join(known)}"
    if settings.webhook_port and not (settings.tls_cert_file and settings.tls_key_file):
        yield "webhook-port", "the webhook needs tls-cert-file and tls-key-file"
    if settings.client_ca_file and not settings.tls_cert_file:
        yield "client-ca-file", "needs tls-cert-file and tls-key-file"


def _is_host(host: str) -> bool:
    """Whether a resolver can be asked about it at all; what it answers is seen when it is listened on."""
    try:
        return bool(host.encode("idna"))
    except UnicodeError:
        return False


def policies_of(settings: Settings) -> MakePolicies:
    """How the ledger makes its policies. Raises UserError if one of the names is unknown."""
    return policies_by_class(settings.policy, settings.seed)
