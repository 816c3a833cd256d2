"""Output of git commands about the project."""

from pathlib import Path

from remote.hosts.base import HostError
from remote.hosts.process import CannotStart, run_program

_TIMEOUT_SEC = 20.0


def run_git(root: Path, *arguments: str) -> str | None:
    """Return the stripped output of a git command, or None without git, without a repository, or after a timeout."""
    argv = ("git", "-C", str(root), *arguments)
    try:
        completed = run_program(argv, label="git", timeout_sec=_TIMEOUT_SEC)
    except (CannotStart, HostError):
        return None
    return completed.stdout.decode(errors="replace").strip() if completed.exit_code == 0 else None
