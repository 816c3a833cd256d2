"""The job on the build VM: which failure is which, an archive of two processes, and packing that can be repeated."""

import errno
import hashlib
import json
import os
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from remote.image.vm_agent import archive, build, fetch, model_sources
from remote.image.vm_agent import job as jobs
from remote.image.vm_agent.client import reason
from remote.image.vm_agent.job import Failed, Watcher
from remote.image.vm_agent.push import is_this
from remote.image.vm_agent.secure_dir import ForeignOwner
from tests.support.machines.failures import fails

KINDS = {
    "full": [
        "write /var/lib/docker/tmp/x: no space left on device",
        "failed to copy files: userspace copy failed: write /models/x: no space left on device",
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
        "mkdir /var/lib/docker/overlay2/x: disk quota exceeded",
    ],
    "unauthorized": [
        "unauthorized: authentication required",
        "denied: requested access to the resource is denied",
        "no basic auth credentials",
    ],
    "transient": [
        'Put "https://fra.ocir.io/v2/x": read tcp 10.0.0.1:1->10.0.0.2:443: read: connection reset by peer',
        "received unexpected HTTP status: 503 Service Unavailable",
        "received unexpected HTTP status: 502 Bad Gateway",
        "blob upload unknown to registry",
        'Get "https://fra.ocir.io/v2/": net/http: TLS handshake timeout',
        'Head "https://fra.ocir.io/v2/x": dial tcp 10.0.0.2:443: connect: connection refused',
        "unexpected EOF",
        'Patch "https://x": write: broken pipe',
    ],
    "failed": [
        "executor failed running [/bin/sh -eu -c python selfcheck.py]: exit code: 1",
        "ERROR: Hashes are required in --require-hashes mode",
        "invalid reference format",
    ],
}


@pytest.mark.parametrize(("kind", "line"), [(kind, line) for kind, lines in KINDS.items() for line in lines])
def test_the_clients_last_words_tell_the_kind_of_failure(kind: str, line: str) -> None:
    failure = reason(["#1 [base 1/2] FROM x", "#2 0.5 working", line], 1)
    assert failure.kind == kind
    assert line in str(failure)


def test_a_step_that_ran_out_of_space_is_found_above_the_clients_last_words() -> None:
    lines = [
        "#9 4.2 OSError: [Errno 28] No space left on device",
        *["#9 4.3 more"] * 60,
        "executor failed running: exit 1",
    ]
    assert reason(lines, 1).kind == "full"


def test_an_engine_names_an_image_by_its_config_or_by_its_manifest() -> None:
    there = ("sha256:manifest", {"config": {"digest": "sha256:config"}})
    assert is_this(there, "sha256:config")
    assert is_this(there, "sha256:manifest")
    assert not is_this(there, "sha256:other")
    assert not is_this(None, "sha256:other")


@pytest.fixture
def watcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watcher:
    monkeypatch.chdir(tmp_path)
    return Watcher()


def test_a_checksum_file_is_read_with_the_image_it_names(tmp_path: Path) -> None:
    path = tmp_path / "a.sha256"
    path.write_text(f"{'a' * 64}  x.tar.gz\n# image sha256:{'b' * 64}\n")
    assert archive.read_checksum(path) == ("a" * 64, f"sha256:{'b' * 64}")
    path.write_text("")
    assert archive.read_checksum(path) == (None, None)


def entry(source: Path, **changes: Any) -> dict[str, Any]:
    content = source.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    place = f"models/org--M/{source.name}"
    return {"slot": 0, "source": str(source), "place": place, "size": len(content), "sha256": digest, **changes}


@pytest.fixture
def job(tmp_path: Path) -> dict[str, Any]:
    code, weights = tmp_path / "code" / "new" / "bench" / "a.py", tmp_path / "w" / "model.safetensors"
    for path in (code, weights):
        path.parent.mkdir(parents=True)
        path.write_bytes(os.urandom(5000))
    code.chmod(0o600)
    return {
        "context": str(tmp_path / "context"),
        "code_folder": str(tmp_path / "code" / "new"),
        "code": [["bench/a.py", hashlib.sha256(code.read_bytes()).hexdigest()]],
        "packed": [entry(weights)],
    }


def test_the_context_holds_exactly_what_is_planned(watcher: Watcher, job: dict[str, Any], tmp_path: Path) -> None:
    stale = tmp_path / "context" / "bench" / "old" / "b.py"
    stale.parent.mkdir(parents=True)
    stale.touch()
    (tmp_path / "code" / "old").mkdir()
    build.assemble(watcher, job)
    context = tmp_path / "context"
    assert sorted(str(path.relative_to(context)) for path in context.rglob("*") if path.is_file()) == [
        "bench/a.py",
        "models/00.tar",
    ]
    assert (context / "bench" / "a.py").stat().st_mode & 0o777 == 0o644
    assert (context / "wheels").is_dir()
    assert not (tmp_path / "code" / "old").exists()


def test_packing_again_gives_the_same_bytes_and_is_left_out_while_nothing_changed(
    watcher: Watcher, job: dict[str, Any], tmp_path: Path
) -> None:
    build.assemble(watcher, job)
    packed = tmp_path / "context" / "models" / "00.tar"
    first, inode = packed.read_bytes(), packed.stat().st_ino
    build.assemble(watcher, job)
    assert packed.stat().st_ino == inode
    os.utime(job["packed"][0]["source"], (1, 1))
    build.assemble(watcher, job)
    assert packed.stat().st_ino != inode
    assert packed.read_bytes() == first
    with tarfile.open(packed) as tar:
        assert [(member.name, member.mtime, member.mode) for member in tar] == [
            ("models", 0, 0o755),
            ("models/org--M", 0, 0o755),
            ("models/org--M/model.safetensors", 0, 0o644),
        ]


def test_a_changed_weight_a_changed_file_and_a_lost_one_are_named_and_nothing_is_kept(
    watcher: Watcher, job: dict[str, Any], tmp_path: Path
) -> None:
    source = Path(job["packed"][0]["source"])
    content = source.read_bytes()
    source.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with fails("refused", "its sha256 is not its manifest's"):
        build.assemble(watcher, job)
    assert list((tmp_path / "context" / "models").iterdir()) == []
    source.unlink()
    source.write_bytes(content[:-1])
    with pytest.raises(Failed, match=r"its sha256 is not its manifest's; `inv model\.fetch` repairs it"):
        build.assemble(watcher, job)
    source.unlink()
    with pytest.raises(Failed, match=r"is gone; `inv model\.fetch` brings it again"):
        build.assemble(watcher, job)
    Path(job["code_folder"], "bench", "a.py").write_text("changed")
    with pytest.raises(Failed, match="is not what was sent"):
        build.assemble(watcher, job)


def test_an_archive_of_weights_that_is_damaged_or_has_lost_its_record_is_packed_again(
    watcher: Watcher, job: dict[str, Any], tmp_path: Path
) -> None:
    build.assemble(watcher, job)
    packed, record = tmp_path / "context" / "models" / "00.tar", tmp_path / build.RECORD_FILE
    whole = packed.read_bytes()
    damaged = bytearray(whole)  # of the size that it should have
    damaged[2000:2003] = bytes(3 * [damaged[2000] ^ 1])
    for content, known in ((damaged, record.read_text()), (whole, "[]"), (b"half", "{}")):
        packed.write_bytes(content)
        record.write_text(known)
        build.assemble(watcher, job)
        assert packed.read_bytes() == whole


def test_a_context_that_is_a_link_is_refused_and_what_it_points_to_stays(
    watcher: Watcher, job: dict[str, Any], tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("all of it")
    (tmp_path / "context").symlink_to(precious)
    with pytest.raises(ForeignOwner, match="context: is a link"):
        build.assemble(watcher, job)
    assert (precious / "thesis.tex").read_text() == "all of it"


STEP_FAILED = """\
#9 [prod 5/9] RUN apt-get install --yes nosuchpackage
#9 0.312 Reading package lists...
#9 0.845 E: Unable to locate package nosuchpackage
#9 ERROR: process "/bin/sh -eu -c apt-get install --yes nosuchpackage" did not complete successfully: exit code: 100
------
 > [prod 5/9] RUN apt-get install --yes nosuchpackage:
------
executor failed running [/bin/sh -eu -c apt-get install --yes nosuchpackage]: exit code: 100"""


def test_a_step_that_failed_is_told_by_its_last_words_and_not_by_its_command() -> None:
    failed = reason(STEP_FAILED.splitlines(), 1)
    assert str(failed) == "E: Unable to locate package nosuchpackage (step [prod 5/9], exit code: 100)"
    assert failed.kind == "failed"


def test_a_weight_that_became_shorter_is_named_with_the_words_there_are(
    watcher: Watcher, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: object) -> None:
        raise OSError("unexpected end of data")  # tarfile's own: without a number, without a file

    monkeypatch.setattr(build, "_pack", cut)
    monkeypatch.setattr(build, "ask", lambda *_: None)
    asked = {
        **job,
        "docker": ["docker"],
        "environment": {},
        "image": "i",
        "label": "l",
        "digest": "d",
        "data_root": "/",
        "anew": False,
    }
    with pytest.raises(Failed, match=r"/context: unexpected end of data$"):
        build.act(watcher, asked)


@pytest.mark.parametrize(("path", "size", "digest"), [("config.json", 2, None), ("config.json", "2", "a"), (7, 2, "a")])
def test_a_file_that_the_hub_lists_without_size_or_digest_is_not_taken_for_verified(
    path: object, size: object, digest: str | None, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = {"revision": "c", "files": [{"path": path, "size": size, "sha256": None, "git_sha1": digest}]}
    monkeypatch.setattr(model_sources, "hub_python", lambda *_: "python")
    monkeypatch.setattr(model_sources.HubSource, "_ask", lambda *_: answer)
    with fails("refused", f"the hub lists {path!r} without size and digest"):
        model_sources.HubSource(watcher, {"index_url": None, "endpoint": None, "revision": None}, None).listed()


def test_damage_is_seen_also_in_a_folder_that_an_older_fetch_brought(watcher: Watcher, tmp_path: Path) -> None:
    (tmp_path / "LICENSES").mkdir()
    (tmp_path / "LICENSES" / "MIT.txt").write_text("damaged")
    files = [{"path": "LICENSES/MIT.txt", "size": 7, "sha256": "0" * 64}]
    assert fetch._damaged(watcher, tmp_path, files) == ["LICENSES/MIT.txt"]


def test_progress_that_cannot_be_written_leaves_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            jobs.write_json(tmp_path / "progress.json", {"stage": "x"})
    assert list(tmp_path.iterdir()) == []


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
    ],
)
def test_a_verb_that_meets_a_broken_disk_ends_the_job_with_an_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, outcome: dict[str, Any]
) -> None:
    def act(*_: Any) -> Any:
        raise error

    monkeypatch.chdir(tmp_path)
    Path("job.json").write_text(json.dumps({"verb": "push"}))
    monkeypatch.setattr(sys, "argv", ["job", "job.json"])
    monkeypatch.setattr(jobs.importlib, "import_module", lambda _: SimpleNamespace(act=act))
    assert jobs.main() == 1
    assert json.loads(Path("outcome.json").read_text()) == outcome
