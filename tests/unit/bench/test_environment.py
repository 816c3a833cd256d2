"""The fingerprint is an allow-list, and says None where it does not know."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench import environment

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def code(tmp_path: Path, monkeypatch) -> Path:
    """A package folder of its own, with no git folder around it."""
    folder = tmp_path / "bench"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    monkeypatch.setattr("bench.environment.CODE", folder)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv(environment.GIT_SHA_VARIABLE, raising=False)
    return folder


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(("git", *identity, *words), cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def committed(code: Path) -> str:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    git(code.parent, "init", "-q")
    git(code.parent, "add", ".")
    git(code.parent, "commit", "-qm", "first")
    return git(code.parent, "rev-parse", "HEAD")


def test_a_clean_checkout_is_its_commit(committed):
    assert environment.code_version() == (committed, False)


def test_a_changed_file_makes_the_checkout_dirty(committed, code: Path):
    (code / "__init__.py").write_text("changed = True")
    assert environment.code_version() == (committed, True)


def test_a_change_elsewhere_leaves_the_code_clean(committed, code: Path):
    (code.parent / "notes.txt").write_text("elsewhere")
    assert environment.code_version() == (committed, False)


@pytest.mark.usefixtures("committed")
def test_code_that_a_surrounding_checkout_does_not_track_is_not_that_commit(code: Path, monkeypatch):
    installed = code.parent / "venv" / "bench"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    monkeypatch.setattr("bench.environment.CODE", installed)
    assert environment.code_version() == (None, None)


@pytest.mark.usefixtures("code")
def test_without_git_the_builds_commit_is_taken(monkeypatch):
    assert environment.code_version() == (None, None)
    monkeypatch.setenv(environment.GIT_SHA_VARIABLE, "abc123")
    assert environment.code_version() == ("abc123", None)


def test_no_secret_of_the_environment_and_no_name_of_the_machine_is_taken(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    monkeypatch.setenv("USER", "ada-lovelace")
    said = repr(environment.host_facts())
    assert "hf_verysecret" not in said
    assert "ada-lovelace" not in said
    assert set(environment.host_facts()) == {
        *("python", *environment.PACKAGES, "git_sha", "git_dirty", "system", "cpu_model", "cpu_logical_cores"),
        *("cpu_allowed_cores", "memory_total_bytes", "load_average_1min_at_start"),
    }


def test_a_missing_package_is_none(monkeypatch):
    monkeypatch.setattr("bench.environment.PACKAGES", ("no-such-package-anywhere",))
    assert environment.host_facts()["no-such-package-anywhere"] is None


def test_the_processor_is_read_where_linux_tells_it():
    if sys.platform != "linux":
        pytest.skip("/proc/cpuinfo is Linux's")
    facts = environment.host_facts()
    assert facts["memory_total_bytes"] > 1 << 28
    assert 1 <= facts["cpu_allowed_cores"] <= facts["cpu_logical_cores"]


def test_a_processor_that_says_nothing_has_no_flags(monkeypatch):
    monkeypatch.setattr("bench.environment._cpu_line", lambda _: None)
    assert environment.cpu_flags() == frozenset()
