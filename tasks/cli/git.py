"""Output of git commands about the project."""

import subprocess
from pathlib import Path

_TIMEOUT_SEC = 20.0


def run_git(root: Path, *arguments: str) -> str | None:
    """Return the stripped output of a git command, or None without git, without a repository, or after a timeout."""
    argv = ("git", "-C", str(root), *arguments)
    try:
        completed = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SEC,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return completed.stdout.strip()
