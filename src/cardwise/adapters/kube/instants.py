"""Instants as Kubernetes writes them: in UTC, most to the second, those of leases to the microsecond."""

from __future__ import annotations

from datetime import UTC, datetime


def stamp(at: datetime) -> str:
    """As most objects have it."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def stamp_now() -> str:
    """This moment, by this machine's clock."""
    return stamp(datetime.now(UTC))


def lease_stamp_now() -> str:
    """This moment as a Lease has it."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
