"""Steps that the tutorials' tests share: a project with an environment, as `make install` leaves it, and its shell."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.hosts.fake_worker_training import install_fake_training
from tests.support.paths import ROOT
from tests.system.conftest import Project

# Two steps of a small model and short rows instead of a real training.
SMALL = {
    "INVOKE_TRAIN_MAX_STEPS": "2",
    "INVOKE_TRAIN_MICRO_BATCH_SIZE": "1",
    "INVOKE_TRAIN_SCORE_ROWS": "2",
    "INVOKE_FLEET_SIZE": "1",
}


def install(folder: Path) -> None:
    """Make the environment that `make install` would make in this folder, from the running one."""
    environment = folder / ".venv"
    environment.mkdir(parents=True)
    for name in ("bin", "lib", "pyvenv.cfg"):
        (environment / name).symlink_to(Path(sys.prefix) / name)
    (environment / "installed").touch()


def complete_project(folder: Path, *, is_small: bool = True) -> None:
    """Add what a copy of the project lacks for `make`; trials of a small one compute nothing."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy2(ROOT / name, folder)
    (folder / "docs").symlink_to(ROOT / "docs")
    if is_small:
        install_fake_training(folder)
    install(folder)


def type_script(project: Project, script: str) -> str:
    """Run a script in a shell in the project's folder; assert that it succeeds, and return its output and errors."""
    argv, folder = ("bash", "-c", script), project.folder
    environment = project.environment | {"PYTHONPATH": str(folder)}
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr
