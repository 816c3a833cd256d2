"""`operator.log` and `--debug` of a real `inv`: what is written where, for a failure, a reader and wrong usage."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Inv = Callable[..., "subprocess.CompletedProcess[str]"]
NO_SSHD = {"INVOKE_BUILD_HOST": "127.0.0.1", "INVOKE_BUILD_PORT": "1"}


def test_a_failed_build_leaves_the_chain_of_causes(project: Path, inv: Inv, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in NO_SSHD.items():
        monkeypatch.setenv(name, value)
    failed = inv("build", "--tmpdir", "/mnt/share")
    log = project / "results" / "operator.log"
    text = log.read_text()
    assert failed.returncode == 3
    assert len(failed.stderr.splitlines()) == 1  # a person sees one line
    assert "ConnectionRefusedError" in text
    assert "HostUnreachable" in text
    assert "inv build --tmpdir /mnt/share" in text
    assert log.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("arguments", [("--debug", "build"), ("build", "--debug")])
def test_debug_prints_the_chain(inv: Inv, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    for name, value in NO_SSHD.items():
        monkeypatch.setenv(name, value)
    failed = inv(*arguments, "--tmpdir", "/mnt/share")
    assert failed.returncode == 3
    assert "ConnectionRefusedError" in failed.stderr


@pytest.mark.parametrize(
    ("arguments", "code"), [(("runs",), 0), (("bench", "--run=none", "--resume"), 2), (("--list",), 0)]
)
def test_a_reader_and_wrong_usage_begin_no_log(project: Path, inv: Inv, arguments: tuple[str, ...], code: int) -> None:
    assert inv(*arguments).returncode == code
    assert not (project / "results").exists()
