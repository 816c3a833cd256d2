"""Fixtures with a copy of the project, in which tests change invoke.yaml and run the real `inv`."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from invoke import Context

from tasks.settings.sources import ProjectConfig
from tests.support.forked import ForkServer
from tests.support.paths import ROOT

Inv = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def no_settings_from_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("INVOKE_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def project(project_folder: Path, sources: Path) -> Path:
    """`project_folder` with the project's tasks.py and tasks/, for tests that run `inv`."""
    shutil.copy(ROOT / "tasks.py", project_folder)
    shutil.copytree(sources / "tasks", project_folder / "tasks", copy_function=os.link)
    return project_folder


@pytest.fixture
def project_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the project's invoke.yaml; the working directory, with a separate HOME."""
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
    """Function that runs `inv` in the copy."""

    def run(
        *arguments: str, cwd: Path | None = None, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return inv_server.inv(*arguments, cwd=cwd or project, env={**os.environ, **(env or {})}, timeout_sec=60)

    return run


@pytest.fixture
def context(project: Path) -> Callable[[], Context]:
    """Function that makes a task's context as `inv` does, with `text` in the -f file."""

    def make(runtime: str | None = None, *, text: str | None = None) -> Context:
        if text is not None:
            runtime = "f.yaml"
            (project / runtime).write_text(text)
        config = ProjectConfig(
            project_location=str(project),
            runtime_path=runtime,
            system_prefix=str(project.parent / "etc-"),
            user_prefix="~/.",
        )
        return Context(config)

    return make
