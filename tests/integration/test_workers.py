"""Tests in forked workers have the same outcomes as in one process (tests/support/workers.py)."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

CONFTEST = """
import pytest
from tests.support.workers import Workers

def pytest_configure(config):
    config.pluginmanager.register(Workers(config, 2, lambda nodeid: nodeid.partition("::")[0]))

@pytest.fixture(scope="session")
def server(tmp_path_factory):
    yield tmp_path_factory.getbasetemp()
    (tmp_path_factory.getbasetemp() / "ended").touch()
"""
DIES = """
import os, signal

def test_passes(server): pass

def test_fails(server):
    print("printed by", server.name)
    assert server.name == "elsewhere"

def test_dies(server): os.kill(os.getpid(), signal.SIGKILL)

def test_comes_after_it(server): print("goes on in", server.name)
"""
SKIPS = """
import pytest

@pytest.mark.skip(reason="a reason")
def test_skips(): pass

@pytest.fixture
def broken(): raise LookupError("nowhere")

def test_cannot_begin(broken): pass
"""
WAITS = """
import time

def test_waits(server):
    (server / "begun").touch()
    time.sleep(600)
"""
FAILS = """
import time

def test_fails(tmp_path_factory):
    while not list(tmp_path_factory.getbasetemp().parent.glob("worker-*/begun")):
        time.sleep(0.02)
    raise LookupError
"""

SHARES = """
import pytest

@pytest.fixture(scope="module")
def page(server):
    with open("made", "a") as made:
        made.write("once ")
    yield
    with open("made", "a") as made:
        made.write("ended ")

def test_one(page): pass

def test_two(page): pass

def test_three(page): pass
"""


def run(folder: Path, *options: str, **files: str) -> tuple[int, str]:
    for name, text in {"conftest": CONFTEST, **files}.items():
        (folder / f"{name}.py").write_text(text)
    argv = (sys.executable, "-m", "pytest", "-rA", f"--basetemp={folder / 'base'}", "-p", "no:cacheprovider", *options)
    done = subprocess.run(
        argv,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


def test_outcomes_output_and_a_crash_are_reported_for_the_right_tests(tmp_path: Path) -> None:
    code, output = run(tmp_path, test_dies=DIES, test_skips=SKIPS)
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "1 failed, 2 passed, 1 skipped, 2 errors" in output
    for line in (
        "FAILED test_dies.py::test_fails",
        "ended with -9 in this test",
        "ERROR test_skips.py::test_cannot_begin - LookupError: nowhere",
        "goes on in worker-3",
        "printed by worker-",
        "SKIPPED [1] test_skips.py",
    ):
        assert line in output, output
    assert [path.parent.name for path in (tmp_path / "base").glob("*/ended")] == ["worker-3"]


def test_module_fixtures_are_set_up_once_and_torn_down_after_the_last_test(tmp_path: Path) -> None:
    code, output = run(tmp_path, test_shares=SHARES, test_others=SHARES.replace("made", "others"))
    assert code == pytest.ExitCode.OK, output
    assert [(tmp_path / name).read_text() for name in ("made", "others")] == ["once ended ", "once ended "]


def test_the_first_failure_stops_all_workers_and_tears_down_their_fixtures(tmp_path: Path) -> None:
    code, output = run(tmp_path, "-x", test_fails=FAILS, test_waits=WAITS)
    assert (code, "stopping after 1 failures" in output) == (pytest.ExitCode.TESTS_FAILED, True), output
    assert list((tmp_path / "base").glob("*/ended"))
