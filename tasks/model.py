"""`inv model.*`: the model and the data a bench reads."""

from __future__ import annotations

import subprocess
import sys

from invoke.context import Context
from invoke.tasks import task

from tasks.errors import TaskFailed, UsageError

DEMO_DEADLINE_SEC = 1800.0


@task
def demo(context: Context) -> None:
    """Make the small demo model and its data set, once."""
    from remote.command import Command
    from tasks import settings as house

    settings = house.load(context)
    command = Command(
        argv=(
            *(sys.executable, "-m", "bench", "demo"),
            *("--model", str(settings.workspace / settings.model.path)),
            *("--data", str(settings.workspace / settings.data.path)),
        ),
        folder=str(settings.root),
    )
    try:
        ended = subprocess.run(
            command.argv, cwd=command.folder, stderr=subprocess.PIPE, timeout=DEMO_DEADLINE_SEC, check=False
        )
    except subprocess.TimeoutExpired:
        raise TaskFailed(f"model.demo: not done after {DEMO_DEADLINE_SEC:.0f} s: {command.render()}") from None
    complaint = ended.stderr.decode(errors="replace").strip()
    if ended.returncode == UsageError.exit_code:
        raise UsageError(f"model.demo: {complaint}")
    if ended.returncode != 0:
        raise TaskFailed(f"model.demo: exit {ended.returncode}: {command.render()}: {command.tail(complaint, lines=1)}")
