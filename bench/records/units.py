"""Bytes and shares as text: one format for commands, messages and reports. Decimal units unless the name has an i."""

from typing import SupportsFloat

_DECIMAL_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def format_gb(byte_count: SupportsFloat, decimals: int = 1) -> str:
    """Format bytes as in 14.5 GB."""
    return f"{float(byte_count) / 1e9:,.{decimals}f} GB"


def format_mb(byte_count: SupportsFloat, decimals: int = 1) -> str:
    """Format bytes as in 14.5 MB."""
    return f"{float(byte_count) / 1e6:,.{decimals}f} MB"


def format_gib(byte_count: SupportsFloat, decimals: int = 1) -> str:
    """Format bytes as in 24.0 GiB."""
    return f"{float(byte_count) / 2**30:,.{decimals}f} GiB"


def format_mib(byte_count: SupportsFloat, decimals: int = 0) -> str:
    """Format bytes as in 64 MiB."""
    return f"{float(byte_count) / 2**20:,.{decimals}f} MiB"


def format_size(byte_count: float) -> str:
    """Format bytes in the largest decimal unit that fits: `64 MB`, `1.07 GB`, `512 B`."""
    for unit, scale in _DECIMAL_UNITS:
        if abs(byte_count) >= scale:
            return f"{byte_count / scale:,.4g} {unit}"
    return f"{byte_count:,.0f} B"


def format_percent(share: float, decimals: int = 0) -> str:
    """Format a share of 1 as in 12 %."""
    return f"{100 * share:,.{decimals}f} %"
