"""Which of a model's files are brought, and what a cache and a manifest say."""

import hashlib
import json
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from remote.hosts.local import LocalHost
from remote.image import vm_jobs
from remote.image.model_fetch import Fetch, FetchError, _as_files, find, start
from remote.image.vm_agent import model_sources
from remote.image.vm_agent.fetch import chosen, digests, read_manifest, weights_of
from remote.image.vm_agent.hf_hub import failure
from remote.image.vm_agent.job import Failed, Watcher
from remote.image.vm_agent.model_sources import Cache, files_of, snapshot_in
from tests.support.hosts.local_fleet import LocalFleet
from tests.support.hosts.pythons import other_python
from tests.support.machines.failures import fails

COMMIT = "a" * 40


def entries(*names: str) -> list[dict[str, object]]:
    return [{"path": name, "size": 1, "sha256": None, "git_sha1": None} for name in names]


def test_of_a_models_files_only_those_that_a_trial_reads_are_brought() -> None:
    of_mistral = ("config.json", "consolidated.safetensors", "model-00001-of-00003.safetensors", "tokenizer.model.v3",
                  "model.safetensors.index.json", "params.json", "README.md", ".gitattributes", "tokenizer.json",
                  "pytorch_model.bin", "original/model.safetensors", "../model.safetensors", "LICENSE.txt",
                  "modeling_custom.py", "chat_template.jinja", "runs/tokenizer.json",
                  "LICENSES/MIT.txt", "tokenizer/tokenizer.json", "LICENSE/../../x")  # fmt: skip
    assert [entry["path"] for entry in chosen(entries(*of_mistral))] == [
        *("config.json", "model-00001-of-00003.safetensors", "model.safetensors.index.json", "tokenizer.json"),
        *("LICENSE.txt", "chat_template.jinja"),
    ]


def test_a_model_of_pickles_alone_is_refused() -> None:
    with fails("usage", "no safetensors weights"):
        chosen(entries("config.json", "pytorch_model.bin"))


def test_the_weights_are_those_that_the_index_names(tmp_path: Path) -> None:
    names = (
        "model-1-of-2.safetensors",
        "model-2-of-2.safetensors",
        "model.safetensors",
        "model.safetensors.index.json",
    )
    index = tmp_path / names[3]
    index.write_text(json.dumps({"weight_map": {"a": names[0], "b": names[1]}}))
    assert weights_of(tmp_path, entries(*names)) == set(names[:2])
    with pytest.raises(Failed, match=r"model-2-of-2\.safetensors: named in the model's index, and not there"):
        weights_of(tmp_path, entries(names[0], names[3]))
    index.write_text("{")
    with pytest.raises(Failed, match="names no files"):
        weights_of(tmp_path, entries(*names))
    assert weights_of(tmp_path, entries("model.safetensors", "other.safetensors")) == {"model.safetensors"}


def test_a_digest_is_sha256s_and_gits_own(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"hello\n")
    assert digests(tmp_path / "f") == (
        6,
        hashlib.sha256(b"hello\n").hexdigest(),
        "ce013625030ba8dba906f756967f9e9ca394464a",  # echo hello | git hash-object --stdin
    )


def test_a_hub_that_sends_nothing_is_given_up_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client sleeps for as long as a Retry-After says."""
    monkeypatch.chdir(tmp_path)
    asleep = subprocess.Popen(("sleep", "60"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    monkeypatch.setattr(model_sources, "hub_python", lambda *_: "python")
    monkeypatch.setattr(model_sources, "STALL_ENDS_SEC", 0.3)
    monkeypatch.setattr(model_sources, "_SHOWN_EVERY_SEC", 0.1)
    monkeypatch.setattr(model_sources.HubSource, "_started", lambda _: asleep)
    hub = model_sources.HubSource(
        Watcher(), {"index_url": None, "endpoint": None, "model": "o/n", "folder": ".", "revision": None}, None
    )
    with asleep, fails("transient", "the hub has sent nothing .* does it limit how often"):
        hub._ask_once({"verb": "fetch"}, lambda: [7])
    assert asleep.returncode == -signal.SIGKILL


@pytest.mark.parametrize("own", ["http://mirror.example", "HTTP://mirror.example", "http://localhost@mirror.ex", "x"])
def test_a_token_is_not_sent_in_clear_to_the_endpoint_that_the_machine_names_itself(
    own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_sources, "hub_python", lambda *_: "python")
    monkeypatch.setenv("HF_ENDPOINT", own)
    job = {"index_url": None, "endpoint": None, "model": "o/n", "folder": ".", "revision": None}
    with fails("usage", f"HF_ENDPOINT: {own}, as this machine has it: the token of hub.token_file would travel"):
        model_sources.HubSource(Watcher(), job, "token")
    model_sources.HubSource(Watcher(), job, None)
    model_sources.HubSource(Watcher(), {**job, "endpoint": "https://hub.example"}, "token")
    for safe in ("https://mirror.example", "http://127.0.0.1:8080", "http://[::1]:8080"):
        monkeypatch.setenv("HF_ENDPOINT", safe)
        model_sources.HubSource(Watcher(), job, "token")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": 1, "revision": "x"}', '{"files": []}', "null"])
def test_a_manifest_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    assert read_manifest(tmp_path) is None


def cache(at: Path, *commits: str) -> Path:
    home = at / "hub" / "models--org--name"
    for commit in commits:
        (home / "snapshots" / commit).mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "blobs").mkdir()
    return home


@pytest.mark.parametrize("named", ["", "hub", "hub/models--org--name"])
def test_a_cache_may_be_named_by_any_of_its_folders(tmp_path: Path, named: str) -> None:
    home = cache(tmp_path, COMMIT)
    (home / "refs" / "main").write_text(COMMIT)
    for revision in (None, "main", COMMIT):
        assert snapshot_in(tmp_path / named, "org/name", revision) == home / "snapshots" / COMMIT


def test_a_cache_without_what_is_asked_for_says_what_it_has(tmp_path: Path) -> None:
    home = cache(tmp_path, COMMIT, "b" * 40)
    with pytest.raises(Failed, match="has no snapshot of main; it has aaa"):
        snapshot_in(tmp_path, "org/name", None)
    with pytest.raises(Failed, match="holds no models--org--other/snapshots"):
        snapshot_in(home, "org/other", None)


def test_a_caches_files_are_known_by_the_digests_their_blobs_are_named_by(tmp_path: Path) -> None:
    home = cache(tmp_path, COMMIT)
    for name, blob in (("large", "c" * 64), ("small", "d" * 40), ("odd", "blob")):
        (home / "blobs" / blob).write_text("x")
        (home / "snapshots" / COMMIT / name).symlink_to(f"../../blobs/{blob}")
    told = {
        entry["path"]: (entry["sha256"], entry["git_sha1"]) for entry in files_of(home / "snapshots" / COMMIT, tmp_path)
    }
    assert told == {"large": ("c" * 64, None), "small": (None, "d" * 40), "odd": (None, None)}


@pytest.mark.parametrize("named", ["", "hub", "hub/models--org--name"])
def test_a_link_that_leads_out_of_a_cache_is_refused_and_nothing_of_it_is_taken(tmp_path: Path, named: str) -> None:
    (tmp_path / "passwd").write_text("root:x:0:0")
    home = cache(tmp_path / "cache", COMMIT)
    snapshot = home / "snapshots" / COMMIT
    (snapshot / "chat_template.json").symlink_to(tmp_path / "passwd")
    with fails("refused", rf"chat_template\.json: leads out of the cache, to {tmp_path}/passwd"):
        files_of(snapshot, tmp_path / "cache" / named)
    (snapshot / "chat_template.json").unlink()
    (snapshot / "config.json").symlink_to(home / "blobs" / "not-there")
    with pytest.raises(Failed, match="which is no file"):
        files_of(snapshot, tmp_path / "cache" / named)
    # And a file that becomes a link between the list and the copy.
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").write_text("{}")
    source = Cache(tmp_path / "cache", "org/name", COMMIT)
    (entry,) = source.listed()[1]
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(tmp_path / "passwd")
    with pytest.raises(Failed, match="leads out of the cache"):
        source.fetch(entry, tmp_path)
    assert not (tmp_path / "config.json").exists()


def test_a_cache_that_cannot_be_linked_to_is_named(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--o--m" / "snapshots" / "c"
    snapshot.mkdir(parents=True)
    said = r"models--o--m: cannot be linked to: No such file"
    with pytest.raises(FetchError, match=said), _as_files(snapshot, ["x"]):
        pytest.fail("there is nothing to bring")
    assert [path.name for path in snapshot.parent.parent.iterdir()] == ["snapshots"]


@pytest.mark.parametrize("model", ["name", "org/", "/name", "org/../x", "org/na me", "-x/y", "a/b/c", "org/.."])
def test_what_is_no_models_name_is_refused(model: str) -> None:
    with pytest.raises(FetchError, match="is no model's name"):
        Fetch(model=model, folder="/x")


@pytest.mark.parametrize("revision", ["", "-x", "a b", "../x", "a\n"])
def test_what_is_no_revision_is_refused(revision: str) -> None:
    with pytest.raises(FetchError, match="is no revision"):
        Fetch(model="org/name", folder="/x", revision=revision)


def test_the_hubs_failures_have_their_kinds() -> None:
    asked = {"model": "org/name", "endpoint": None, "token": None, "revision": "v1", "folder": "/f"}
    errors = pytest.importorskip("huggingface_hub.errors")
    response = type("Response", (), {"status_code": 503, "headers": {}, "request": None})()
    known = {name: type(name, (Exception,), {}) for name in ("GatedRepoError", "RevisionNotFoundError", "ConnectError")}
    assert failure(asked, known["GatedRepoError"]())[0] == "unauthorized"
    assert failure(asked, known["RevisionNotFoundError"]())[0] == "usage"
    assert failure(asked, known["ConnectError"]("refused"))[0] == "transient"
    assert failure(asked, OSError(28, "No space left on device"))[0] == "full"
    assert failure(asked, ValueError("odd"))[0] == "failed"
    busy = Exception("busy")
    busy.response = response  # type: ignore[attr-defined]
    assert failure(asked, busy)[0] == "transient"
    assert issubclass(errors.GatedRepoError, Exception)
    assert {errors.RevisionNotFoundError.__name__, errors.RepositoryNotFoundError.__name__} == {
        "RevisionNotFoundError",
        "RepositoryNotFoundError",
    }


@pytest.mark.parametrize("version", ["3.9", "3.13"])
def test_a_model_comes_from_a_cache_under_another_python_without_any_package(local: LocalFleet, version: str) -> None:
    python = other_python(version)
    home = cache(local.folder / "cache", COMMIT)
    weights = b"\x02\0\0\0\0\0\0\0{}"
    for name, content in (("config.json", b"{}"), ("model.safetensors", weights), ("model.bin", b"pickle")):
        (home / "blobs" / hashlib.sha256(content).hexdigest()).write_bytes(content)
        (home / "snapshots" / COMMIT / name).symlink_to(f"../../blobs/{hashlib.sha256(content).hexdigest()}")
    agent = vm_jobs.agent_on(LocalHost(name="vm", workdir=str(local.folder / "work"), python=(python,)))
    folder = local.folder / "models" / "org--name"
    wanted = Fetch(model="org/name", folder=str(folder), revision=COMMIT, cache=str(local.folder / "cache"))
    lines: list[vm_jobs.JobLine] = []

    def bring() -> Mapping[str, Any]:
        assert find(agent, wanted) is None
        return vm_jobs.follow(start(agent, wanted, deadline_sec=60.0), lines.append, lambda _: None).facts

    facts = bring()
    assert (facts["revision"], facts["files"], facts["fetched_bytes"]) == (COMMIT, 3, 2 + len(weights))
    assert sorted(path.name for path in folder.iterdir()) == [
        "SHA256SUMS",
        *("config.json", "manifest.json", "model.safetensors"),
    ]
    assert bring()["fetched_bytes"] == 0
    (folder / "model.safetensors").write_bytes(weights[:-1] + b"]")
    assert bring()["fetched_bytes"] == len(weights)
    assert any("model.safetensors: not what the manifest says" in line.text for line in lines)
    assert (folder / "model.safetensors").read_bytes() == weights
