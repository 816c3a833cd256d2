"""What of this subject starts a process."""

import gzip
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from remote.hosts.bundle import program
from remote.image.vm_agent import archive, build
from remote.image.vm_agent import client as clients
from remote.image.vm_agent.job import Failed, Watcher
from remote.jobs.agent import ONHOST
from tests.support.hosts.pythons import other_python
from tests.support.machines.failures import fails


@pytest.fixture
def watcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watcher:
    monkeypatch.chdir(tmp_path)
    return Watcher()


def test_a_pipe_is_what_both_its_ends_say(watcher: Watcher, tmp_path: Path) -> None:
    out = tmp_path / "out"
    digest = archive.pipe(watcher, ["printf", "abc"], ["gzip", "-c"], {}, out)
    assert digest == hashlib.sha256(out.read_bytes()).hexdigest()
    with pytest.raises(Failed, match="save broke"):
        archive.pipe(watcher, ["sh", "-c", "printf abc; echo save broke >&2; exit 1"], ["gzip", "-c"], {}, out)
    with pytest.raises(Failed, match="sh ended with exit code 3"):
        archive.pipe(watcher, ["printf", "abc"], ["sh", "-c", "cat; exit 3"], {}, out)


def test_a_source_that_never_ends_is_ended_when_the_compressor_dies(watcher: Watcher, tmp_path: Path) -> None:
    with pytest.raises(Failed):
        archive.pipe(watcher, ["cat", "/dev/zero"], ["sh", "-c", "exit 1"], {}, tmp_path / "out")


@pytest.mark.parametrize("spoil", ["nothing", "a byte in the middle", "a byte at the end", "its end"])
def test_an_archive_is_read_once_and_a_wrong_one_never_reaches_the_engine_whole(
    watcher: Watcher, tmp_path: Path, spoil: str
) -> None:
    content = os.urandom(4 * archive.PIECE) + b"its manifest"  # gzip makes it no smaller
    path = tmp_path / "image.tar.gz"
    path.write_bytes(gzip.compress(content, 1))
    whole = path.read_bytes()
    (tmp_path / "image.tar.gz.sha256").write_text(f"{hashlib.sha256(whole).hexdigest()}  image.tar.gz\n")
    at = {"a byte in the middle": len(whole) // 2, "a byte at the end": len(whole) - 9}.get(spoil)
    if at is not None:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    elif spoil == "its end":
        path.write_bytes(whole[: 2 * archive.PIECE])
    engine = tmp_path / "docker"
    engine.write_text(f"#!/bin/sh\nexec cat > '{tmp_path}/given'\n")
    engine.chmod(0o755)
    job = {"action": "load", "path": str(path), "docker": [str(engine)], "environment": {}}
    if spoil == "nothing":
        archive.act(watcher, job)
        assert (tmp_path / "given").read_bytes() == content
        return
    with fails("refused", r"its sha256 is not the one in image\.tar\.gz\.sha256; copy it there again"):
        archive.act(watcher, job)
    assert b"its manifest" not in (tmp_path / "given").read_bytes()


def test_an_engine_that_does_not_answer_may_answer_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "ASK_SEC", 0.05)
    with fails("transient", "the engine did not answer `30` within 0 s"):
        clients.ask(["sleep"], {}, "30")


def test_the_program_runs_on_the_oldest_python_a_vm_may_have() -> None:
    names = [str(path) for path in sorted(Path(build.__file__).parent.rglob("*.py"))]
    script = "import sys; [compile(open(name).read(), name, 'exec') for name in sys.argv[1:]]"
    subprocess.run((other_python("3.9"), "-c", script, *names), check=True, timeout=60)


def test_a_program_of_two_packages_runs_from_its_folder(tmp_path: Path) -> None:
    delivered = program(ONHOST, "remote.image.vm_agent")
    for path, text in delivered.texts.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "job.json").write_text('{"verb": "archive", "action": "load", "path": "/none.tar.gz", '
                                       '"docker": ["false"], "environment": {}}')  # fmt: skip
    argv = [sys.executable, "-I", "-S", "remote/image/vm_agent/__main__.py", "job.json"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (1, "")
    assert '"kind": "refused"' in (tmp_path / "outcome.json").read_text()
