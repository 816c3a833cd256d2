"""Selection of a model's files, caches, manifests, and a complete fetch."""

import hashlib
import json
import os
import resource
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from remote.agent.build_vm import hf_hub
from remote.agent.build_vm.fetch import read_manifest, weight_files
from remote.agent.build_vm.hf_hub import HubSource, to_agent_error
from remote.agent.build_vm.job import JobLog
from remote.agent.shared.model_files import CacheSource, find_snapshot, select_files, snapshot_files
from remote.hosts.local import LocalHost
from remote.image import vm_jobs
from tasks.errors import UsageError
from tasks.image.model import Fetch
from tests.support.hosts.local_fleet import LocalFleet
from tests.support.hosts.pythons import other_python
from tests.support.machines.failures import raises_agent_error
from tests.support.paths import ROOT

COMMIT = "a" * 40


def entries(*names: str) -> list[dict[str, object]]:
    return [{"path": name, "size": 1, "sha256": None, "git_sha1": None} for name in names]


def test_only_the_files_that_a_trial_reads_are_fetched() -> None:
    available = ("config.json", "consolidated.safetensors", "model-00001-of-00003.safetensors", "tokenizer.model.v3",
                 "model.safetensors.index.json", "params.json", "README.md", ".gitattributes", "tokenizer.json",
                 "pytorch_model.bin", "original/model.safetensors", "../model.safetensors", "LICENSE.txt",
                 "modeling_custom.py", "chat_template.jinja", "runs/tokenizer.json",
                 "LICENSES/MIT.txt", "tokenizer/tokenizer.json", "LICENSE/../../x", "LICENSE\n  slot 00")  # fmt: skip
    assert [entry["path"] for entry in select_files(entries(*available))] == [
        *("config.json", "model-00001-of-00003.safetensors", "model.safetensors.index.json", "tokenizer.json"),
        *("LICENSE.txt", "chat_template.jinja"),
    ]
    with raises_agent_error("usage", "safetensors.*; "):
        select_files(entries("config.json", "pytorch_model.bin"))


def test_the_weight_files_are_those_in_the_index(tmp_path: Path) -> None:
    names = (
        "model-1-of-2.safetensors",
        "model-2-of-2.safetensors",
        "model.safetensors",
        "model.safetensors.index.json",
    )
    index = tmp_path / names[3]
    index.write_text(json.dumps({"weight_map": {"a": names[0], "b": names[1]}}))
    assert weight_files(tmp_path, entries(*names)) == set(names[:2])
    with raises_agent_error("failed", r"^model-2-of-2\.safetensors: .*index"):
        weight_files(tmp_path, entries(names[0], names[3]))
    for text in ("{", "[" * 100_000, '{"weight_map": ' * 50_000):
        index.write_text(text)
        with raises_agent_error("failed", r"^model\.safetensors\.index\.json "):
            weight_files(tmp_path, entries(*names))
    with index.open("wb") as file:
        file.truncate(4 << 30)  # sparse: read whole, it would need 4 GiB of memory
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with raises_agent_error("failed", r"^model\.safetensors\.index\.json "):
        weight_files(tmp_path, entries(*names))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB
    assert weight_files(tmp_path, entries("model.safetensors", "other.safetensors")) == {"model.safetensors"}


JOB: dict[str, Any] = {"index_url": None, "endpoint": None, "model": "o/n", "folder": ".", "revision": None}


@pytest.fixture
def _hub_client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Leave this process without a client of the hub, and its environment as it is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.environ", {})
    monkeypatch.setattr(hf_hub, "load_client", lambda *_: None)


@pytest.mark.usefixtures("_hub_client")
def test_a_hub_that_sends_nothing_is_transient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's client sleeps for as long as a Retry-After says."""
    monkeypatch.setattr(hf_hub, "STALL_TIMEOUT_SEC", 0.3)
    monkeypatch.setattr(hf_hub, "PROGRESS_INTERVAL_SEC", 0.1)
    ended = threading.Event()
    with raises_agent_error("transient", "^the hub .*; "):
        HubSource(JobLog(), JOB, None)._request(ended.wait, lambda: [7])
    ended.set()


@pytest.mark.usefixtures("_hub_client")
@pytest.mark.parametrize("endpoint", ["HTTP://mirror.example", "http://localhost@mirror.ex"])
def test_a_token_is_not_sent_without_tls_to_the_endpoint_in_the_machines_environment(endpoint: str) -> None:
    os.environ["HF_ENDPOINT"] = endpoint
    with raises_agent_error("usage", rf"^HF_ENDPOINT: {endpoint} .*hub\.token_file.*; .*hub\.endpoint"):
        HubSource(JobLog(), JOB, "token")
    HubSource(JobLog(), JOB, None)
    HubSource(JobLog(), {**JOB, "endpoint": "https://hub.example"}, "token")
    for safe in ("https://mirror.example", "http://127.0.0.1:8080", "http://[::1]:8080"):
        os.environ["HF_ENDPOINT"] = safe
        HubSource(JobLog(), JOB, "token")


@pytest.mark.usefixtures("_hub_client")
@pytest.mark.parametrize(("path", "size", "digest"), [("config.json", 2, None), ("config.json", "2", "a"), (7, 2, "a")])
def test_a_file_that_the_hub_lists_without_size_or_digest_is_refused(
    path: object, size: object, digest: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [{"path": path, "size": size, "sha256": None, "git_sha1": digest}]
    monkeypatch.setattr(HubSource, "_list_commit", lambda _: ("c", files))
    with raises_agent_error("refused", f"hub .*{path!r}"):
        HubSource(JobLog(), JOB, None).list_files()


@pytest.mark.parametrize("text", ["{", "[]", '{"files": 1, "revision": "x"}', '{"files": []}', "[" * 100_000])
def test_an_unreadable_manifest_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    assert read_manifest(tmp_path) is None


def create_cache(folder: Path, commit: str) -> Path:
    home = folder / "hub" / "models--org--name"
    (home / "snapshots" / commit).mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "blobs").mkdir()
    return home


def test_a_cache_is_found_by_any_of_its_folders_and_a_missing_snapshot_is_named(tmp_path: Path) -> None:
    home = create_cache(tmp_path, COMMIT)
    (home / "refs" / "main").write_text(COMMIT)
    for subfolder in ("", "hub", "hub/models--org--name"):
        for revision in (None, "main", COMMIT):
            assert find_snapshot(tmp_path / subfolder, "org/name", revision) == home / "snapshots" / COMMIT
    with raises_agent_error("usage", rf"^{home}: .*models--org--other/snapshots; "):
        find_snapshot(home, "org/other", None)
    (home / "refs" / "main").unlink()
    (home / "snapshots" / ("b" * 40)).mkdir()
    with raises_agent_error("usage", rf"^{home}: .*\bmain; .*{COMMIT}, {'b' * 40}"):
        find_snapshot(tmp_path, "org/name", None)


def test_a_link_out_of_a_cache_is_refused_and_not_copied(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("root:x:0:0")
    home = create_cache(tmp_path / "cache", COMMIT)
    snapshot = home / "snapshots" / COMMIT
    (snapshot / "chat_template.json").symlink_to(tmp_path / "passwd")
    with raises_agent_error("refused", rf"/chat_template\.json: .* {tmp_path}/passwd"):
        snapshot_files(snapshot, tmp_path / "cache")
    (snapshot / "chat_template.json").unlink()
    (snapshot / "config.json").symlink_to(home / "blobs" / "not-there")
    with raises_agent_error("refused", rf"/config\.json: .*{home}/blobs/not-there"):
        snapshot_files(snapshot, tmp_path / "cache")
    # A file that is replaced by a link between listing and copying.
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").write_text("{}")
    source = CacheSource(str(tmp_path / "cache"), "org/name", COMMIT)
    (entry,) = source.list_files()[1]
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(tmp_path / "passwd")
    with raises_agent_error("refused", rf"/config\.json: .* {tmp_path}/passwd"):
        source.fetch(entry, tmp_path)
    assert not (tmp_path / "config.json").exists()


def test_an_invalid_model_name_or_revision_is_refused() -> None:
    for model in ("name", "org/", "/name", "org/../x", "org/na me", "-x/y", "a/b/c", "org/.."):
        with pytest.raises(UsageError, match=rf"^{model!r} .*; expected ORGANISATION/NAME"):
            Fetch(model=model, folder="/x")
    for revision in ("", "-x", "a b", "../x", "a\n"):
        with pytest.raises(UsageError, match="revision"):
            Fetch(model="org/name", folder="/x", revision=revision)


BUSY = Exception("busy")
BUSY.response = SimpleNamespace(status_code=503)  # type: ignore[attr-defined]


def hub_error(name: str) -> Exception:
    return type(name, (Exception,), {})("text of the hub")


@pytest.mark.parametrize(
    ("error", "kind", "remedy"),
    [
        (hub_error("GatedRepoError"), "unauthorized", "hub.token_file"),
        (hub_error("RevisionNotFoundError"), "usage", "commit, tag or branch"),
        (hub_error("RepositoryNotFoundError"), "usage", "hub.token_file"),
        (hub_error("ConnectError"), "transient", ""),
        (OSError(28, "No space left on device"), "full", ""),
        (ValueError("odd"), "failed", ""),
        (BUSY, "transient", ""),
    ],
)
def test_each_error_of_the_hub_has_its_kind_and_its_remedy_apart(error: Exception, kind: str, remedy: str) -> None:
    failure = to_agent_error(JOB, error, has_token=False)
    assert failure.kind == kind
    assert remedy in failure.remedy
    assert bool(remedy) is bool(failure.remedy)
    assert not remedy or remedy not in failure.problem


@pytest.mark.parametrize("name", ["GatedRepoError", "RevisionNotFoundError", "RepositoryNotFoundError"])
def test_the_hubs_client_has_the_errors_that_are_told_apart(name: str) -> None:
    assert issubclass(getattr(pytest.importorskip("huggingface_hub.errors"), name), Exception)


def test_a_model_is_fetched_from_a_cache_with_another_python_without_packages(local: LocalFleet) -> None:
    python = other_python("3.9")
    home = create_cache(local.folder / "cache", COMMIT)
    weights = b"\x02\0\0\0\0\0\0\0{}"
    blobs = {
        "config.json": (b"{}", "9e26dfeeb6e641a33dae4961196235bdb965b21b"),  # printf {} | git hash-object --stdin
        "model.safetensors": (weights, hashlib.sha256(weights).hexdigest()),
        "model.bin": (b"pickle", hashlib.sha256(b"pickle").hexdigest()),
    }
    for name, (content, digest) in blobs.items():
        (home / "blobs" / digest).write_bytes(content)
        (home / "snapshots" / COMMIT / name).symlink_to(f"../../blobs/{digest}")
    (home / "snapshots" / COMMIT / "LICENSE").write_text("a file instead of a link to a blob")
    agent = vm_jobs.create_agent(LocalHost(name="vm", workdir=str(local.folder / "work"), python=(python,)))
    folder = local.folder / "models" / "org--name"
    fetched = Fetch(model="org/name", folder=str(folder), revision=COMMIT, cache=str(local.folder / "cache"))
    request = {**asdict(fetched), "token": False}
    work = vm_jobs.VmWork(verb="fetch", name="m", request=request, command="inv", deadline_sec=60.0, logs=local.folder)
    lines = list[str]()

    def fetch() -> Mapping[str, Any]:
        assert vm_jobs.running_job(agent) is None
        job = work.new_job(agent)
        work.start(job)
        return vm_jobs.follow(job, lambda *line: lines.append(line[2]), lambda _: None).facts

    blob = (home / "snapshots" / COMMIT / "model.safetensors").resolve()
    blob.write_bytes(weights[:-1] + b"]")
    with pytest.raises(vm_jobs.JobFailed, match=r"^model\.safetensors: "):
        fetch()
    blob.write_bytes(weights)
    facts = fetch()
    assert (facts["revision"], facts["files"], facts["without_digest"]) == (COMMIT, 4, ["LICENSE"])
    assert sorted(path.name for path in folder.iterdir()) == [
        *("LICENSE", "SHA256SUMS", "config.json", "manifest.json", "model.safetensors"),
    ]
    assert fetch()["fetched_bytes"] == 0
    (folder / "model.safetensors").write_bytes(weights[:-1] + b"]")
    assert fetch()["fetched_bytes"] == len(weights)
    assert any(line.startswith("model.safetensors: ") and "manifest" in line for line in lines)
    assert (folder / "model.safetensors").read_bytes() == weights


def test_the_hubs_client_is_installed_from_a_lock_with_hashes_and_again_after_another_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = list[list[str]]()

    def run_logged(_: JobLog, argv: list[str]) -> tuple[int, list[str]]:  # its output is the job's progress
        called.append(argv)
        (tmp_path / "hub-client").mkdir(exist_ok=True)
        return (1, ["no index"]) if argv[-1:] == ["file:///none"] else (0, [])

    (tmp_path / "jobs" / "fetch-x").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "jobs" / "fetch-x")
    monkeypatch.setattr(hf_hub.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(hf_hub, "run_logged", run_logged)
    monkeypatch.setattr(sys, "path", ["/usr/lib/python3/dist-packages"])
    lock = (ROOT / "image" / "locks" / "hub-client.txt").read_text()
    for text, count in ((lock, 2), (lock, 2), (lock + "#", 4)):
        hf_hub.load_client(JobLog(), None, text)
        assert Path(sys.path[0]).is_relative_to(tmp_path / "hub-client" / "lib")
        assert len(called) == count
        assert Path("hub-client.txt").read_text() == text
        assert called[-1][-3:] == ["--require-hashes", "--requirement", str(Path.cwd() / "hub-client.txt")]
    with raises_agent_error("usage", r"huggingface_hub .*\(no index\); .*image\.index_url.*\(--cache\)"):
        hf_hub.load_client(JobLog(), "file:///none", "another lock")
