"""A secret in a file of the operator's own: read whole, and only where nobody else can read it."""

from __future__ import annotations

import stat
from pathlib import Path

from tasks.errors import UsageError
from tasks.settings.load import Settings


def read(settings: Settings, setting: str, name: str) -> str:
    """The text of the file that `setting` names, less its last line break. Raises UsageError."""
    path = Path(name).expanduser()
    path = path if path.is_absolute() else settings.root / path
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UsageError(f"{setting}: {path}: cannot be read: {why}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(f"{setting}: {path}: others may read it; type: chmod 600 {path}")
    if not text.strip():
        raise UsageError(f"{setting}: {path}: is empty")
    return text.removesuffix("\n")
