"""The job on the build VM: classification of failures, archives, and reproducible packing."""

import errno
import hashlib
import json
import os
import signal
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from remote.agent.build_vm import build, fetch
from remote.agent.build_vm import job as jobs
from remote.agent.build_vm.client import classify_failure
from remote.agent.build_vm.job import JobLog
from remote.agent.build_vm.push import is_same_image
from remote.agent.shared.secure_dir import ForeignOwner
from tests.support.cases import Case, load_cases
from tests.support.machines.failures import raises_agent_error


@pytest.mark.parametrize("case", load_cases(__file__, "client_failures.yaml"))
def test_the_clients_last_lines_determine_the_kind_of_failure(case: Case) -> None:
    failure = classify_failure(["#1 [base 1/2] FROM x", "#2 0.5 working", *case["input"].splitlines()], 1)
    assert failure.kind == case["expected"]["kind"]
    assert str(failure) == case["expected"].get("message", case["input"])


def test_a_full_disk_is_found_above_the_clients_last_lines() -> None:
    lines = [
        "#9 4.2 OSError: [Errno 28] No space left on device",
        *["#9 4.3 more"] * 60,
        "executor failed running: exit 1",
    ]
    assert classify_failure(lines, 1).kind == "full"


@pytest.mark.parametrize("lines", [[], ["#9 0.5 compiling error.c"]])
def test_a_killed_client_is_reported_with_its_signal(lines: list[str]) -> None:
    failure = classify_failure(lines, -signal.SIGKILL)
    assert failure.kind == "transient"
    assert "signal 9" in str(failure)


def test_an_image_id_is_the_digest_of_config_or_manifest() -> None:
    pushed = ("sha256:manifest", {"config": {"digest": "sha256:config"}})
    assert is_same_image(pushed, "sha256:config")
    assert is_same_image(pushed, "sha256:manifest")
    assert not is_same_image(pushed, "sha256:other")


@pytest.fixture
def job_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobLog:
    folder = tmp_path / "jobs" / "build-x"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return JobLog()


@pytest.fixture
def job(tmp_path: Path) -> dict[str, Any]:
    code, weights = tmp_path / "code" / "new" / "bench" / "a.py", tmp_path / "w" / "model.safetensors"
    for path in (code, weights):
        path.parent.mkdir(parents=True)
        path.write_bytes(os.urandom(5000))
    code.chmod(0o600)
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    packed = {
        "slot": 0,
        "source": str(weights),
        "place": f"models/org--M/{weights.name}",
        "size": 5000,
        "sha256": digest,
    }
    return {
        "context": str(tmp_path / "context"),
        "code_folder": str(tmp_path / "code" / "new"),
        "code": [["bench/a.py", hashlib.sha256(code.read_bytes()).hexdigest()]],
        "packed": [packed],
    }


def test_the_context_contains_exactly_the_planned_files(job_log: JobLog, job: dict[str, Any], tmp_path: Path) -> None:
    stale = tmp_path / "context" / "bench" / "old" / "b.py"
    stale.parent.mkdir(parents=True)
    stale.touch()
    (tmp_path / "code" / "old").mkdir()
    build.assemble(job_log, job)
    context = tmp_path / "context"
    assert sorted(str(path.relative_to(context)) for path in context.rglob("*") if path.is_file()) == [
        "SHA256SUMS",
        "bench/a.py",
        "models/00.tar",
        "models/SHA256SUMS",
    ]
    assert (context / "bench" / "a.py").stat().st_mode & 0o777 == 0o644
    assert (context / "wheels").is_dir()
    assert not (tmp_path / "code" / "old").exists()


def test_packing_is_reproducible_and_skipped_if_nothing_changed(
    job_log: JobLog, job: dict[str, Any], tmp_path: Path
) -> None:
    build.assemble(job_log, job)
    packed = tmp_path / "context" / "models" / "00.tar"
    first, inode = packed.read_bytes(), packed.stat().st_ino
    build.assemble(job_log, job)
    assert packed.stat().st_ino == inode
    (tmp_path / build.RECORD_FILE).unlink()
    build.assemble(job_log, job)
    assert packed.stat().st_ino != inode
    assert packed.read_bytes() == first
    with tarfile.open(packed) as tar:
        assert [(member.name, member.mtime, member.mode) for member in tar] == [
            ("models", 0, 0o755),
            ("models/org--M", 0, 0o755),
            ("models/org--M/model.safetensors", 0, 0o644),
        ]


def test_changed_and_missing_files_are_reported_and_no_archive_is_kept(
    job_log: JobLog, job: dict[str, Any], tmp_path: Path
) -> None:
    source = Path(job["packed"][0]["source"])
    content = source.read_bytes()
    source.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with raises_agent_error("refused", rf"^{source}: .*sha256.*; .*`inv model\.fetch`"):
        build.assemble(job_log, job)
    assert not list((tmp_path / "context" / "models").glob("*.tar*"))
    source.write_bytes(content[:-1])
    with raises_agent_error("refused", rf"^{source}: "):
        build.assemble(job_log, job)


def test_an_archive_that_is_damaged_or_without_a_record_is_packed_again(
    job_log: JobLog, job: dict[str, Any], tmp_path: Path
) -> None:
    build.assemble(job_log, job)
    packed, record = tmp_path / "context" / "models" / "00.tar", tmp_path / build.RECORD_FILE
    intact = packed.read_bytes()
    damaged = bytearray(intact)  # same size
    damaged[2000:2003] = bytes(3 * [damaged[2000] ^ 1])
    for content, record_text in ((damaged, record.read_text()), (intact, "[]"), (b"half", "{}")):
        packed.write_bytes(content)
        record.write_text(record_text)
        build.assemble(job_log, job)
        assert packed.read_bytes() == intact


def test_an_edit_that_keeps_the_size_changes_the_time_by_which_the_engine_notices_it(
    job_log: JobLog, job: dict[str, Any], tmp_path: Path
) -> None:
    times = set()
    for text in ("a = 1\n", "a = 2\n", "a = 1\n"):
        Path(job["code_folder"], "bench", "a.py").write_text(text)
        build.assemble(job_log, {**job, "code": [["bench/a.py", hashlib.sha256(text.encode()).hexdigest()]]})
        times.add((tmp_path / "context" / "bench" / "a.py").stat().st_mtime_ns)
    assert len(times) == 2


def test_a_context_that_is_a_link_is_refused_and_its_target_is_kept(
    job_log: JobLog, job: dict[str, Any], tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "thesis.tex").write_text("content")
    (tmp_path / "context").symlink_to(outside)
    with pytest.raises(ForeignOwner, match=rf"^{tmp_path}/context: .*link"):
        build.assemble(job_log, job)
    assert (outside / "thesis.tex").read_text() == "content"


def test_damage_in_a_subfolder_of_an_older_fetch_is_detected(job_log: JobLog, tmp_path: Path) -> None:
    (tmp_path / "LICENSES").mkdir()
    (tmp_path / "LICENSES" / "MIT.txt").write_text("damaged")
    files = [{"path": "LICENSES/MIT.txt", "size": 7, "sha256": "0" * 64}]
    assert fetch._remove_damaged(job_log, tmp_path, files) == ["LICENSES/MIT.txt"]


def test_progress_that_cannot_be_written_ends_nothing_and_leaves_no_files(
    job_log: JobLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=fail, flush=fail))
    job_log.add("a line for a full disk")
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            jobs.write_json(Path("progress.json"), {"stage": "x"})
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (
            OSError(errno.EDQUOT, "Disk quota exceeded", "/mnt/fss/part"),
            {"ok": False, "kind": "full", "message": "/mnt/fss/part: Disk quota exceeded"},
        ),
        (
            OSError(errno.EIO, "Input/output error"),
            {"ok": False, "kind": "failed", "message": "push: Input/output error"},
        ),
        (OSError("unexpected end of data"), {"ok": False, "kind": "failed", "message": "push: unexpected end of data"}),
        (RecursionError("too deep"), {"ok": False, "kind": "failed", "message": "push: RecursionError: too deep"}),
    ],
)
@pytest.mark.usefixtures("restored_signals")
def test_any_error_ends_the_job_with_an_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, outcome: dict[str, Any]
) -> None:
    def run(*_: Any) -> Any:
        raise error

    monkeypatch.chdir(tmp_path)
    Path("job.json").write_text(json.dumps({"verb": "push"}))
    monkeypatch.setattr(sys, "argv", ["job", "job.json"])
    monkeypatch.setattr(jobs.importlib, "import_module", lambda _: SimpleNamespace(run=run))
    assert jobs.main() == 1
    assert json.loads(Path("outcome.json").read_text()) == outcome
