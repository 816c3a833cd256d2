"""A copy of the project in a folder of its own, so that its invoke.yaml can be spoiled and `inv` really run in it."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from invoke import Config, Context

from tests.support.forked import ForkServer
from tests.support.paths import ROOT

Inv = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def no_settings_from_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("INVOKE_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def project(settled: Path) -> Path:
    """`settled` with the project's tasks.py and tasks/, for what really runs `inv`."""
    shutil.copy(ROOT / "tasks.py", settled)
    shutil.copytree(ROOT / "tasks", settled / "tasks", ignore=shutil.ignore_patterns("__pycache__"))
    return settled


@pytest.fixture
def settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the project's invoke.yaml; it is the working folder and has its own HOME."""
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(ROOT / "invoke.yaml", folder)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def inv(project: Path, inv_server: ForkServer) -> Inv:
    """Runs `inv` in the copy."""

    def run(
        *words: str, cwd: Path | None = None, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return inv_server.inv(*words, cwd=cwd or project, env={**os.environ, **(env or {})}, timeout_sec=60)

    return run


@pytest.fixture
def context(project: Path) -> Callable[[], Context]:
    """Makes a task's context as Invoke does, without its reading the project's and the -f file, which holds `text`."""

    def make(runtime: str | None = None, *, text: str | None = None) -> Context:
        if text is not None:
            runtime = "f.yaml"
            (project / runtime).write_text(text)
        config = Config(
            project_location=str(project),
            runtime_path=runtime,
            system_prefix=str(project.parent / "etc-"),
            user_prefix="~/.",
        )
        return Context(config)

    return make
