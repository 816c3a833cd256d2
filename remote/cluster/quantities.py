"""Kubernetes quantities ("4", "500m", "24Gi", "1e9") as numbers, so that "1" and "1000m" are the same.

Not `kubernetes.utils.parse_quantity`: it takes "NaN", "1_000" and " 5 ", and its import costs 0.2 s in every verb that
reads settings.
"""

import re
from decimal import Decimal

_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    **{letter: Decimal(1000) ** (power + 1) for power, letter in enumerate("kMGTPE")},
    **{f"{letter}i": Decimal(1024) ** (power + 1) for power, letter in enumerate("KMGTPE")},
}

_FORM = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d{1,3})|([A-Za-z]*))")
_LONGEST, _MOST = 100, Decimal(2**63 - 1)  # Kubernetes holds no larger number and takes any larger one for it


def amount(quantity: object) -> Decimal:
    """The number a quantity stands for. Raises ValueError."""
    text = str(quantity)
    match = _FORM.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None or (match[3] or "") not in _SUFFIXES:
        raise ValueError(f"{quantity!r} is not a Kubernetes quantity")
    return max(-_MOST, min(_MOST, Decimal(match[1] + (match[2] or "")) * _SUFFIXES[match[3] or ""]))


def same(one: object, other: object) -> bool:
    """Whether two values are the same text, or the same quantity."""
    if one == other:
        return True
    try:
        return amount(one) == amount(other)
    except ValueError:
        return False


def in_gib(number: Decimal | float) -> str:
    """Bytes for people: 24.0 GiB."""
    return f"{float(number) / 2**30:.1f} GiB"
