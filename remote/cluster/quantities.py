"""Kubernetes quantities ("4", "500m", "24Gi", "1e9") as numbers, so that "1" and "1000m" are the same.

Not `kubernetes.utils.parse_quantity`: it accepts "NaN", "1_000" and " 5 ", and its import costs 0.2 s in every command
that reads settings.
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

_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d{1,3})|([A-Za-z]*))")
_MAX_CHARS, _MAX_AMOUNT = 100, Decimal(2**63 - 1)  # Kubernetes caps larger numbers at this one


def parse_quantity(quantity: object) -> Decimal:
    """Parse a quantity. Raises ValueError."""
    text = str(quantity)
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_CHARS else None
    if match is None or (match[3] or "") not in _SUFFIXES:
        raise ValueError(f"{quantity!r} is not a Kubernetes quantity")
    return max(-_MAX_AMOUNT, min(_MAX_AMOUNT, Decimal(match[1] + (match[2] or "")) * _SUFFIXES[match[3] or ""]))
