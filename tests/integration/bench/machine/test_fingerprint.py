"""The fingerprint contains only allowed facts; unknown ones are None."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from bench.machine import fingerprint


@pytest.fixture
def code(tmp_path: Path, monkeypatch) -> Path:
    """Create a package folder outside any git repository."""
    folder = tmp_path / "bench"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    monkeypatch.setattr("bench.machine.fingerprint.PACKAGE_FOLDER", folder)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv(fingerprint.GIT_SHA_VARIABLE, raising=False)
    return folder


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(("git", *identity, *arguments), cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def committed(code: Path) -> str:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    git(code.parent, "init", "-q")
    git(code.parent, "add", ".")
    git(code.parent, "commit", "-qm", "first")
    return git(code.parent, "rev-parse", "HEAD")


def test_a_checkout_is_its_commit_and_dirty_where_the_code_itself_was_changed(committed, code: Path):
    assert fingerprint.code_version() == (committed, False)
    (code.parent / "notes.txt").write_text("elsewhere")
    assert fingerprint.code_version() == (committed, False)
    (code / "__init__.py").write_text("changed = True")
    assert fingerprint.code_version() == (committed, True)


@pytest.mark.usefixtures("committed")
def test_code_that_a_surrounding_checkout_does_not_track_is_not_that_commit(code: Path, monkeypatch):
    installed = code.parent / "venv" / "bench"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    monkeypatch.setattr("bench.machine.fingerprint.PACKAGE_FOLDER", installed)
    assert fingerprint.code_version() == (None, None)
    monkeypatch.setenv(fingerprint.GIT_SHA_VARIABLE, "abc123")  # the build's commit
    assert fingerprint.code_version() == ("abc123", None)


def test_no_secret_of_the_environment_and_no_name_of_the_machine_is_taken(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    monkeypatch.setenv("USER", "ada-lovelace")
    text = repr(fingerprint.host_facts())
    assert "hf_verysecret" not in text
    assert "ada-lovelace" not in text
    facts = fingerprint.host_facts()
    assert facts["memory_total_bytes"] > 1 << 28
    assert 1 <= facts["cpu_allowed_cores"] <= facts["cpu_logical_cores"]
    assert set(facts) == {
        *(
            "qlora_fleet",
            "python",
            *fingerprint.PACKAGES,
            "git_sha",
            "git_dirty",
            "system",
            "cpu_model",
            "cpu_logical_cores",
        ),
        *("cpu_allowed_cores", "memory_total_bytes", "load_average_1min_at_start"),
    }


def test_an_unknown_processor_has_no_flags_and_a_missing_package_no_version(monkeypatch):
    monkeypatch.setattr("bench.machine.fingerprint.PACKAGES", ("no-such-package-anywhere",))
    assert fingerprint.host_facts()["no-such-package-anywhere"] is None
    monkeypatch.setattr("bench.machine.fingerprint._cpu_line", lambda _: None)
    assert fingerprint.cpu_flags() == frozenset()


# environment.json -----------------------------------------------------------------------------------------------------


def test_environment_json_is_whole_and_holds_digests_packages_and_allowed_variables(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("QLORA_FLEET_IMAGE_DIGEST", "sha256:aa")
    monkeypatch.delenv("QLORA_FLEET_LOCK_DIGEST", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    monkeypatch.setenv("HOSTNAME", "the-name-of-this-machine")
    path = fingerprint.write(tmp_path, {"model_sha256": "bb", "seed": 42})
    text = path.read_text()
    document = json.loads(text)
    assert (document["image_digest"], document["lock_digest"]) == ("sha256:aa", None)
    assert (document["model_sha256"], document["seed"]) == ("bb", 42)
    assert document["packages"]["pytest"] == pytest.__version__
    assert document["variables"]["OMP_NUM_THREADS"] == "3"
    assert set(document["variables"]) <= set(fingerprint.VARIABLES)
    assert "hf_verysecret" not in text
    assert "the-name-of-this-machine" not in text
    assert [entry.name for entry in tmp_path.iterdir()] == ["environment.json"]
