"""The fingerprint contains only allowed facts; unknown ones are None."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from bench.machine import fingerprint


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(("git", *identity, *arguments), cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_code_is_the_commit_that_tracks_it_and_dirty_where_it_was_changed(tmp_path: Path, monkeypatch):
    code, installed = tmp_path / "bench", tmp_path / "venv" / "bench"
    for folder in (code, installed):
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
    monkeypatch.setattr(fingerprint, "PACKAGE_FOLDER", code)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for command in ("init -q", "add bench", "commit -qm first"):
        git(tmp_path, *command.split())
    commit = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "notes.txt").write_text("elsewhere")
    assert fingerprint.code_version() == (commit, False)
    (code / "__init__.py").write_text("changed = True")
    assert fingerprint.code_version() == (commit, True)
    monkeypatch.setattr(fingerprint, "PACKAGE_FOLDER", installed)
    monkeypatch.setenv(fingerprint.GIT_SHA_VARIABLE, "abc123")  # the build's commit
    assert fingerprint.code_version() == ("abc123", None)


def test_facts_are_those_allowed_without_secrets_and_names(tmp_path: Path, monkeypatch):
    private = {"HF_TOKEN": "hf_verysecret", "USER": "ada-lovelace", "HOSTNAME": "the-name-of-this-machine"}
    for name, value in {**private, "QLORA_FLEET_IMAGE_DIGEST": "sha256:aa", "OMP_NUM_THREADS": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("QLORA_FLEET_LOCK_DIGEST", raising=False)
    monkeypatch.setattr(fingerprint, "PACKAGES", ("pytest", "no-such-package-anywhere"))
    facts = fingerprint.host_facts()
    assert (facts["pytest"], facts["no-such-package-anywhere"]) == (pytest.__version__, None)
    assert facts["memory_total_bytes"] > 1 << 28
    assert 1 <= facts["cpu_allowed_cores"] <= facts["cpu_logical_cores"]
    text = fingerprint.write(tmp_path, {"model_sha256": "bb", **facts}).read_text()
    assert not [value for value in private.values() if value in text]
    document = json.loads(text)
    assert (document["image_digest"], document["lock_digest"], document["model_sha256"]) == ("sha256:aa", None, "bb")
    assert document["packages"]["pytest"] == pytest.__version__
    assert document["variables"]["OMP_NUM_THREADS"] == "3"
    assert set(document["variables"]) <= set(fingerprint.VARIABLES)
    assert [entry.name for entry in tmp_path.iterdir()] == ["environment.json"]


def test_an_unknown_processor_has_no_flags(monkeypatch):
    monkeypatch.setattr(fingerprint, "_cpu_line", lambda _: None)
    assert fingerprint.cpu_flags() == frozenset()
