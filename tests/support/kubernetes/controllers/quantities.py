"""Kubernetes quantities: `500m`, `64Mi`, `1`."""

import re
from fractions import Fraction

_UNITS = {"": 1, "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "k": 10**3, "M": 10**6}
_UNITS |= {"G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
PATTERN = re.compile(r"^([+-]?[0-9.]+)([eE][+-]?[0-9]+)?(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$")


def parse_quantity(quantity: str | float) -> Fraction:
    """Return the exact value of a quantity. Raises ValueError if the API server would reject it."""
    match = PATTERN.match(str(quantity))
    if match is None:
        raise ValueError(f"{quantity!r} is not a quantity")
    return Fraction(match[1] + (match[2] or "")) * _UNITS[match[3] or ""]


def format_quantity(value: Fraction) -> str:
    """Format a quantity as an integer, or in thousandths (`500m`)."""
    return str(int(value)) if value.denominator == 1 else f"{int(value * 1000)}m"
