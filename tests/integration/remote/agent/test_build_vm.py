"""The VM agent with real processes: pipelines, archives, the oldest supported Python."""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from remote.agent.build_vm import archive
from remote.agent.build_vm.job import JobLog
from remote.agent.shared.errors import VmAgentError
from remote.agent.shared.secure_dir import ForeignOwner
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


def test_an_old_archive_is_replaced_by_a_complete_one_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "inspect_image", lambda *_: {"Id": "i", "Size": 1})
    monkeypatch.setattr(archive, "COMPRESSORS", (("gzip", ("-c",), ".tar.gz"),))
    monkeypatch.chdir(tmp_path)  # the job's folder
    folder, files = tmp_path / "archives", ["q-t.tar.gz", "q-t.tar.gz.sha256"]
    job = {"path": str(folder), "image": "q:t", "image_id": "i"}
    archive.run(JobLog(), {"docker": ["echo"], **job})
    before = [(folder / name).read_bytes() for name in files]
    with pytest.raises(VmAgentError):
        archive.run(JobLog(), {"docker": ["false"], **job})
    assert [(folder / name).read_bytes() for name in files] == before
    assert sorted(path.name for path in folder.iterdir()) == files
    (folder / files[0]).chmod(0o666)
    with pytest.raises(ForeignOwner, match=files[0]):
        archive.run(JobLog(), {"docker": ["echo"], **job})


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
