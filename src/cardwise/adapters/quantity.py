"""Kubernetes quantities, exactly: ``500m``, ``64``, ``1.5Gi``, ``1e3``.

Written by us because a float loses bytes and a lenient parser turns ``NaN`` or ``16Gi`` into 0, which fits anywhere.
Refuses what Kubernetes refuses, and negative amounts: nothing asks for less than nothing.
Source: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import functools
import math
import re
from fractions import Fraction

from cardwise.files import seen

MIB = 2**20
MAX_CARD_MIB = 2**20
"""1 TiB. Above every card there is (288 GB in 2026); an amount above it is a unit mix-up, such as bytes for MiB."""
MAX_MILLI = 10**12
"""A thousand million cores: above every sum, far below what overflows int64."""

_SUFFIXES: dict[str, Fraction] = {
    "": Fraction(1),
    **{prefix: Fraction(1, 1000 ** (i + 1)) for i, prefix in enumerate("mun")},
    **{prefix: Fraction(1000 ** (i + 1)) for i, prefix in enumerate("kMGTPE")},
    **{prefix + "i": Fraction(1024 ** (i + 1)) for i, prefix in enumerate("KMGTPE")},
}
_QUANTITY = re.compile(
    r"(?P<number>\+?(?:[0-9]{1,20}\.?[0-9]{0,20}|\.[0-9]{1,20}))(?P<unit>[eE][+-]?[0-9]{1,2}|[A-Za-z]*)"
)
_MOST = 2**63 - 1
"""Kubernetes' own bound."""
_QUANTITY_FORMS = "write a Kubernetes quantity of 0 or more such as 4, 500m, 8G, 8Gi or 1e3"
_MEMORY_FORMS = "write 4096 (MiB), 4096Mi, 4Gi or 4G, more than 0 and at most 1Ti"


class NotAQuantityError(ValueError):
    """Text that no API server lets through: the file was not written by one."""


@functools.lru_cache(maxsize=4096)  # a cluster asks for the same few amounts in thousands of containers
def parse_quantity(value: str | int) -> Fraction:
    """The exact amount of a Kubernetes quantity, in its base unit (cores, bytes, pieces), 0 or more.

    Raises NotAQuantityError with the value and the accepted forms.
    """
    text = str(value)
    parts = _QUANTITY.fullmatch(text)
    unit = parts["unit"] if parts else ""
    scale = _SUFFIXES.get(unit) or (Fraction(10) ** int(unit[1:]) if unit[1:] and unit[0] in "eE" else None)
    if not parts or scale is None:
        raise NotAQuantityError(f"{seen(text)} is not a quantity; {_QUANTITY_FORMS}")
    amount = Fraction(parts["number"]) * scale
    if amount > _MOST:
        raise NotAQuantityError(f"{seen(text)} is more than 2**63; {_QUANTITY_FORMS}")
    return amount


def parse_milli(value: str | int, *, up: bool) -> int:
    """Thousandths of a quantity. ``up``: round a request up, so that it is covered; what is on offer rounds down."""
    milli = _whole(parse_quantity(value) * 1000, up=up)
    if milli > MAX_MILLI:
        raise ValueError(f"{seen(value)} is more than any node has; {_QUANTITY_FORMS}")
    return milli


def parse_mib(value: str | int, *, up: bool) -> int:
    """MiB of a quantity of bytes, rounded as in :func:`parse_milli`."""
    return _whole(parse_quantity(value) / MIB, up=up)


def parse_count(value: str | int) -> int:
    """A number of pieces. Raises ValueError for a fraction: half a card is asked in MiB and percent."""
    amount = parse_quantity(value)
    if amount.denominator != 1:
        raise ValueError(f"{seen(value)} is not a whole number; write 0, 1, 2, ...")
    return int(amount)


def parse_card_mib(value: str | int) -> int:
    """MiB of card memory as users write it (SPEC A1): a plain number is MiB, a unit says bytes; rounded up.

    Raises ValueError for anything else: 0, ``5k`` (5000 MiB or 5 kB?), ``4.5``, ``NaN``, and more than any card has.
    """
    text = str(value)
    if re.fullmatch(r"[0-9]{1,20}", text):
        mib = int(text)
    elif re.fullmatch(r"[0-9]{1,20}[MGT]i?", text):
        mib = parse_mib(text, up=True)
    else:
        raise ValueError(f"{seen(text)} is not an amount of card memory; {_MEMORY_FORMS}")
    if not 0 < mib <= MAX_CARD_MIB:
        raise ValueError(f"{seen(text)} is not an amount of card memory; {_MEMORY_FORMS}")
    return mib


def parse_asked_card_mib(value: str | int) -> int:
    """MiB of card memory as the API server tells it: as :func:`parse_card_mib`, but ``5k`` is 5000 MiB.

    The API server rewrites every quantity in its shortest form, so a user's 5000 comes back as ``5k``.
    Source: Quantity.CanonicalizeBytes in k8s.io/apimachinery/pkg/api/resource.
    """
    text = str(value)
    return parse_card_mib(f"{text[:-1]}000" if re.fullmatch(r"[0-9]{1,17}k", text) else text)


def _whole(amount: Fraction, *, up: bool) -> int:
    return math.ceil(amount) if up else math.floor(amount)
