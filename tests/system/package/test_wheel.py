"""Tests of the wheel in an environment of its own: its files, its commands, and other packages with the same names.

The environment's dependencies are those of the environment that runs the tests.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.records.version import VERSION

ROOT = Path(__file__).resolve().parents[3]
FOLDER = "mein Ordner ü/qlora fleet"  # a script's first line cannot hold a space
NAMES = ("bench", "remote", "reports", "tasks")
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def call(*argv: object, folder: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([str(word) for word in argv], cwd=folder, capture_output=True, text=True, check=True)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout's files: a build leaves folders in it."""
    folder = tmp_path_factory.mktemp("source") / FOLDER
    for name in call("git", "ls-files", "-co", "--exclude-standard").stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    options = ["wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", "dist"]
    call(sys.executable, "-m", "pip", *options, ".", folder=source)
    (path,) = (source / "dist").glob("*.whl")
    return path


def make_environment(folder: Path, *package: object) -> None:
    call(sys.executable, "-m", "venv", "--without-pip", folder)
    (site,) = folder.glob("lib/*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    options = ["install", "-q", "--no-deps", "--no-index", "--no-compile", "--no-build-isolation"]
    call(sys.executable, "-m", "pip", "--python", folder / "bin/python", *options, *package)


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environment") / FOLDER
    make_environment(folder, wheel)
    return folder


@pytest.fixture
def run(environment: Path, tmp_path: Path) -> Run:
    """Run a program of the environment in an empty folder."""
    return lambda program, *argv: call(environment / "bin" / program, *argv, folder=tmp_path)


@pytest.fixture
def inputs(tiny_model: Path, tiny_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the commands the demo's model and data."""
    monkeypatch.setenv("INVOKE_MODEL_PATH", str(tiny_model))
    monkeypatch.setenv("INVOKE_DATA_PATH", str(tiny_data))


def test_the_wheel_has_every_file_that_the_commands_read(wheel: Path, source: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    below = {name.removeprefix("qlora_fleet/") for name in names if name.startswith("qlora_fleet/")}
    expected = {
        path.relative_to(source).as_posix()
        for folder in (*NAMES, "image", "manifests")
        for path in (source / folder).rglob("*")
        if path.is_file() and path.suffix not in (".md", ".pyc") and path.name != "inv"
    }
    assert {name for name in below if not name.endswith(".md")} == expected | {"invoke.yaml", "tasks.py"}
    others = [name for name in names if not name.startswith(("qlora_fleet/", "qlora_fleet-"))]
    assert others == ["qlora_fleet.pth"]


@pytest.mark.usefixtures("inputs")
def test_the_commands_run_in_an_empty_folder_whose_settings_and_results_they_use(run: Run, tmp_path: Path) -> None:
    assert run("inv", "--version").stdout.startswith(f"qlora-fleet {VERSION}, Invoke ")
    assert "bench" in run("inv", "--list").stdout
    assert VERSION in run("python", "-m", "bench", "--version").stdout
    assert run("inv", "bench", "--quick", "--dry-run").returncode == 0
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "invoke.yaml").write_text("results: { folder: elsewhere }\n")
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(subprocess.CalledProcessError) as failed:
        run("inv", "report")
    assert str(tmp_path / "elsewhere") in failed.value.stderr


def test_a_checkout_works_in_a_path_with_a_space(source: Path, tmp_path: Path) -> None:
    make_environment(source / ".venv", "--editable", source)
    (source / ".venv" / "installed").touch()
    call("make", "install", folder=source)
    os.symlink(source / ".venv/bin/inv", tmp_path / "inv")
    assert VERSION in call(tmp_path / "inv", "--version").stdout


@pytest.mark.usefixtures("inputs")
def test_packages_with_the_same_names_stay_and_are_not_used(run: Run, environment: Path) -> None:
    (site,) = environment.glob("lib/*/site-packages")
    for name in NAMES:
        (site / name).mkdir()
        (site / name / "__init__.py").write_text("raise SystemExit(77)\n")
    try:
        with pytest.raises(subprocess.CalledProcessError) as failed:
            run("python", "-m", "bench")
        assert failed.value.returncode == 77  # without `inv`, Python's order holds
        run("inv", "bench", "--quick", "--dry-run")  # which starts `python -m bench inspect`
    finally:
        for name in NAMES:
            shutil.rmtree(site / name)
