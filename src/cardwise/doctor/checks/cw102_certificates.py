"""CW102: a certificate is about to expire or has; then the API server cannot ask the webhook, nor kube-scheduler us."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from cardwise.adapters.symptoms import TlsSecret, WebhookConfiguration
from cardwise.doctor.facts import Facts
from cardwise.doctor.findings import CERTAIN, EVERYWHERE, LIKELY, Check, Finding

SOON_DAYS = 14
"""cert-manager renews after two thirds of the time: what has two weeks left of a year was not renewed."""
NAMES = ("cardwise-tls", "cardwise-client-tls")
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
SEQUENCE, INTEGER, VERSION, UTC_TIME, GENERALIZED = 0x30, 0x02, 0xA0, 0x17, 0x18
DAY_S = 86400.0


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each certificate that ends soon, or cannot be read."""
    for where, data in _certificates(facts):
        try:
            end = min(not_after(each) for each in pem_certificates(data))
        except ValueError as exc:
            yield _finding(where, f"{where} holds no certificate that can be read", str(exc), LIKELY)
            continue
        left_days = (end - facts.taken).total_seconds() / DAY_S
        if left_days < SOON_DAYS:
            said = f"expired {-left_days:.0f} days ago" if left_days < 0 else f"expires in {left_days:.0f} days"
            seen = f"{where}: valid until {end:%Y-%m-%d %H:%M} UTC"
            yield _finding(where, f"{where} {said}", seen, CERTAIN, later=left_days >= 0)


def _finding(where: str, cause: str, evidence: str, likelihood: float, *, later: bool = False) -> Finding:
    action = (
        "renew it: helm upgrade makes new ones (tls.mode self-signed); with cert-manager, "
        "kubectl describe certificate -A says why it did not"
    )
    return Finding("CW102", where, frozenset({EVERYWHERE}), cause, (evidence,), action, likelihood, later)


def _certificates(facts: Facts) -> Iterator[tuple[str, str]]:
    """Where each is, and its PEM in base64."""
    for hooks in facts.capture.of(WebhookConfiguration):
        if hooks.metadata.name == "cardwise":
            bundles = {hook.client_config.ca_bundle for hook in hooks.webhooks} - {""}
            yield from (("the webhook's caBundle", bundle) for bundle in sorted(bundles))
    for secret in facts.capture.of(TlsSecret):
        if secret.metadata.name in NAMES:
            yield f"Secret {secret.metadata.namespace}/{secret.metadata.name}", secret.data.certificate


def pem_certificates(data: str) -> list[bytes]:
    """DER of each certificate of a PEM in base64. Raises ValueError if there is none."""
    try:
        found = [base64.b64decode(each, validate=False) for each in _PEM.findall(base64.b64decode(data))]
    except binascii.Error as exc:
        raise ValueError(f"it is not base64: {exc}") from exc
    if not found:
        raise ValueError("no PEM certificate in it")
    return found


def not_after(der: bytes) -> datetime:
    """When a certificate ends. Raises ValueError if it is none. Source: RFC 5280, 4.1: tbsCertificate, validity."""
    inner = _inside(_inside(der, SEQUENCE), SEQUENCE)
    parts = list(_parts(inner))
    if parts and parts[0][0] == VERSION:
        parts = parts[1:]
    if len(parts) < 4 or [tag for tag, _ in parts[:4]] != [INTEGER, SEQUENCE, SEQUENCE, SEQUENCE]:
        raise ValueError("it is no X.509 certificate")
    times = list(_parts(parts[3][1]))
    if len(times) != 2:
        raise ValueError("its validity has no end")
    tag, text = times[1]
    form = {UTC_TIME: "%y%m%d%H%M%SZ", GENERALIZED: "%Y%m%d%H%M%SZ"}.get(tag, "")
    return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC)


def _inside(der: bytes, tag: int) -> bytes:
    found, content = next(_parts(der), (0, b""))
    if found != tag:
        raise ValueError("it is no X.509 certificate")
    return content


def _parts(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each element, one after the other. Source: X.690, 8.1."""
    at = 0
    while at < len(der):
        if at + 2 > len(der):
            raise ValueError("it is cut off")
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:
            count = length & 0x7F
            length, at = int.from_bytes(der[at : at + count], "big"), at + count
        if at + length > len(der):
            raise ValueError("it is cut off")
        yield tag, der[at : at + length]
        at += length


CHECK = Check("CW102", "A certificate is about to expire, or has", find, frozenset({"CW101", "CW206"}))
