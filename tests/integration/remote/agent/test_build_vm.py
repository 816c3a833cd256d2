"""The VM agent with real processes: pipelines, archives, the oldest supported Python."""

import gzip
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from remote.agent.build_vm import archive, build
from remote.agent.build_vm.job import JobLog
from remote.agent.shared.errors import VmAgentError
from remote.hosts.local import LocalHost
from remote.image.vm_jobs import create_agent


def test_a_pipeline_fails_if_either_process_fails(tmp_path: Path) -> None:
    out = tmp_path / "out"
    archive.run_pipeline(["printf", "abc"], ["gzip", "-c"], out)
    assert gzip.decompress(out.read_bytes()) == b"abc"
    with pytest.raises(VmAgentError, match="save broke"):
        archive.run_pipeline(["sh", "-c", "printf abc; echo save broke >&2; exit 1"], ["gzip", "-c"], out)
    with pytest.raises(VmAgentError, match=r"^sh .*\b3$"):
        archive.run_pipeline(["printf", "abc"], ["sh", "-c", "cat; exit 3"], out)


def test_an_endless_source_is_ended_when_the_compressor_exits(tmp_path: Path) -> None:
    with pytest.raises(VmAgentError):
        archive.run_pipeline(["cat", "/dev/zero"], ["sh", "-c", "exit 1"], tmp_path / "out")


def test_a_program_of_two_packages_runs_from_its_folder(tmp_path: Path) -> None:
    delivered = create_agent(LocalHost(name="vm", workdir=str(tmp_path))).program
    for path, text in delivered.texts.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "job.json").write_text('{"verb": "build", "docker": ["false"], "data_root": "/", "base": "b"}')
    argv = [sys.executable, "-I", "-S", "remote/agent/build_vm/__main__.py", "job.json"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (1, "")
    assert '"kind": "transient"' in (tmp_path / "outcome.json").read_text()


def test_sha256sum_reads_the_sums_of_the_context_whose_digests_are_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs" / "build-x").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "jobs" / "build-x")
    job_log = JobLog()
    code, sha256 = tmp_path / "code" / "new", hashlib.sha256(b"content").hexdigest()
    for name in (names := ["a.py", "a\\b\nc.py"]):
        (code / "extension").mkdir(parents=True, exist_ok=True)
        (code / "extension" / name).write_text("content")
    weights = {"slot": 0, "source": str(code / "extension" / "a.py"), "place": "models/x", "size": 7, "sha256": sha256}
    job = {
        "context": str(tmp_path / "context"),
        "code_folder": str(code),
        "code": [[f"extension/{name}", sha256] for name in names],
        "packed": [weights],
    }
    arguments = build.assemble(job_log, job)
    for name, folder in (("CONTEXT_SHA256", tmp_path / "context"), ("MODELS_SHA256", tmp_path / "context" / "models")):
        assert arguments[name] == hashlib.sha256((folder / "SHA256SUMS").read_bytes()).hexdigest()
        subprocess.run(("sha256sum", "--check", "--strict", "SHA256SUMS"), cwd=folder, check=True, capture_output=True)
