"""`operator.log` and `--debug` of a real `inv`: what is written where, for a failure, a reader and wrong usage."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.paths import ROOT

Inv = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def _no_sshd(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "image").symlink_to(ROOT / "image")
    monkeypatch.setenv("INVOKE_BUILD_HOST", "ssh://127.0.0.1:1")


@pytest.mark.usefixtures("_no_sshd")
@pytest.mark.parametrize("arguments", [("build",), ("--debug", "build"), ("build", "--debug")])
def test_a_failed_build_leaves_the_chain_of_causes(project: Path, inv: Inv, arguments: tuple[str, ...]) -> None:
    failed = inv(*arguments, "--tmpdir", "/mnt/share")
    log = project / "results" / "operator.log"
    text = log.read_text()
    assert failed.returncode == 3
    # A person sees one line; with --debug before or after the task, the chain, too.
    is_debug = "--debug" in arguments
    assert (len(failed.stderr.splitlines()) == 1, "ConnectionRefusedError" in failed.stderr) == (not is_debug, is_debug)
    assert "ConnectionRefusedError" in text
    assert "HostUnreachable" in text
    assert f"inv {' '.join(arguments)} --tmpdir /mnt/share" in text
    assert log.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("arguments", "code"), [(("runs",), 0), (("bench", "--run=none", "--resume"), 2), (("--list",), 0)]
)
def test_a_reader_and_wrong_usage_begin_no_log(project: Path, inv: Inv, arguments: tuple[str, ...], code: int) -> None:
    assert inv(*arguments).returncode == code
    assert not (project / "results").exists()
