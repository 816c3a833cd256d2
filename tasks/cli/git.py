"""What git knows of the project."""

import subprocess
from pathlib import Path

_GIT_SEC = 20.0


def git(root: Path, *words: str) -> str | None:
    """What git prints, stripped; None where there is no git, no repository, or no answer in time."""
    argv = ("git", "-C", str(root), *words)
    try:
        ended = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_GIT_SEC,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return ended.stdout.strip()
