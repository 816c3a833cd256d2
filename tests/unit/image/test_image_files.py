"""The image's own files: a Dockerfile that old engines take, whole locks, a self-check that finds faults."""

import hashlib
import importlib.util
import json
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tasks import ns
from tasks.settings.schema import LEAVES
from tests.support.paths import ROOT

IMAGE = ROOT / "image"
PROFILES: dict[str, Any] = yaml.safe_load((IMAGE / "profiles.yaml").read_text())
DOCKERFILE = (IMAGE / "Dockerfile").read_text()


def test_nothing_in_the_dockerfile_needs_a_frontend_that_would_be_downloaded() -> None:
    assert not re.search(r"^#\s*syntax\s*=", DOCKERFILE, re.MULTILINE | re.IGNORECASE)
    assert "<<" not in DOCKERFILE
    assert "--link" not in DOCKERFILE


def test_what_changes_most_comes_last_and_weights_before_anything_of_ours() -> None:
    lines = [line for line in DOCKERFILE.split("AS dev")[0].splitlines() if re.match(r"(COPY|ADD) ", line)]
    assert lines[-1] == "COPY bench /opt/qlora-fleet/bench"
    places = [index for index, line in enumerate(lines) if line.startswith("ADD model")]
    ours = [index for index, line in enumerate(lines) if line.startswith(("COPY image", "COPY bench"))]
    assert max(places) < min(ours)


def test_what_triton_builds_with_is_where_trials_run() -> None:
    base = DOCKERFILE.split("FROM base AS toolkit")[0]
    assert {"g++", '"libpython${PYTHON_VERSION}-dev"'} <= set(base.split())
    assert re.search(r"^FROM base AS models$.*^FROM models AS prod$", DOCKERFILE, re.MULTILINE | re.DOTALL)


def test_the_arguments_defaults_are_the_default_profile() -> None:
    defaults = dict(re.findall(r"^ARG (\w+)=(.*)$", DOCKERFILE, re.MULTILINE))
    assert defaults["BASE_IMAGE"] == PROFILES["current"]["base"]
    assert defaults["PYTHON_VERSION"] == PROFILES["current"]["python"]
    assert defaults["PROFILE"] == "current"


@pytest.mark.parametrize("profile", PROFILES)
def test_a_lock_has_every_package_asked_for_in_one_version_with_hashes(profile: str) -> None:
    text = (IMAGE / "locks" / f"{profile}.txt").read_text()
    blocks = re.findall(
        r"^([a-z0-9][a-z0-9._-]*)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.MULTILINE
    )
    names = [name for name, _, _ in blocks]
    assert len(names) == len(set(names)) == len(re.findall(r"^[a-z0-9]", text, re.MULTILINE))
    locked = {name: version for name, version, _ in blocks}
    wanted = re.findall(
        r"^([A-Za-z0-9_.-]+)(?:==([^\s#]+))?", (IMAGE / "locks" / f"{profile}.in").read_text(), re.MULTILINE
    )
    assert len(wanted) > 10
    for name, version in wanted:
        plain = re.sub(r"[-_.]+", "-", name).lower()
        assert locked[plain] == version or not version, name
    assert "pynvml" not in locked  # shadows nvidia-ml-py
    assert int(locked["setuptools"].split(".")[0]) < 82


def test_the_example_for_ci_types_tasks_and_sets_settings_that_are_there_and_no_secret_is_an_argument() -> None:
    text = (ROOT / "docs" / "ci-image.yaml").read_text()
    (job,) = yaml.safe_load(text)["jobs"].values()
    lines = [line for step in job["steps"] for line in step.get("run", "").splitlines()]
    typed = [line.split("#")[0].split()[1:] for line in lines if line.startswith("inv ")]
    assert [words[0] for words in typed] == ["build", "image.verify", "push", "image.bom", "image.show"]
    for name, *flags in typed:
        known = {flag for get_argument in ns[name].get_arguments() for flag in get_argument.names}
        assert {flag.removeprefix("--") for flag in flags} <= known, name
    settings = {f"INVOKE_{'_'.join(path).upper()}" for path in LEAVES}
    assert set(job["env"]) <= settings
    assert not [line for line in lines if "secrets." in line]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("selfcheck_of_the_image", IMAGE / "selfcheck.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "MODELS", tmp_path / "models")
    monkeypatch.setattr(sys, "argv", ["selfcheck.py", "--verify", "--json"])
    (tmp_path / "locks").mkdir()
    write_lock(tmp_path, "pydantic", "pyyaml")
    return module


def write_lock(folder: Path, *names: str, version: str | None = None) -> None:
    from importlib import metadata

    (folder / "locks" / "x.in").write_text("".join(f"{name}\n" for name in names))
    lines = [f"{name}=={version or metadata.version(name)} \\\n    --hash=sha256:{'0' * 64}\n" for name in names]
    (folder / "locks" / "x.txt").write_text("".join(lines))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Those of the one model in the image."""
    model = tmp_path / "models" / "org--M"
    model.mkdir(parents=True)
    header = json.dumps({"w": {"dtype": "U8", "shape": [100], "data_offsets": [0, 100]}, "__metadata__": {}}).encode()
    weights = model / "model.safetensors"
    weights.write_bytes(struct.pack("<Q", len(header)) + header + bytes(100))
    sha256 = hashlib.sha256(weights.read_bytes()).hexdigest()
    files = [{"path": weights.name, "size": weights.stat().st_size, "sha256": sha256}]
    (model / "manifest.json").write_text(json.dumps({"files": files}))
    return weights


def ask(check: ModuleType, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = check.main()
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, report


def test_a_whole_image_is_whole(check: ModuleType, weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = ask(check, capsys)
    assert (code, report["wrong"]) == (0, [])
    assert set(report["packages"]) == {"pydantic", "pyyaml"}
    manifest = weights.with_name("manifest.json")
    (model,) = report["models"]
    assert model["manifest_sha256"] == hashlib.sha256(manifest.read_bytes()).hexdigest()
    assert model["bytes"] == weights.stat().st_size + manifest.stat().st_size


@pytest.mark.parametrize(
    ("words", "damage"),
    [
        (
            "1 is in the lock and not installed",
            lambda weights: write_lock(weights.parents[2], "not-installed-anywhere", version="1"),
        ),
        (
            "pydantic: the lock says 0.0.1, installed is",
            lambda weights: write_lock(weights.parents[2], "pydantic", version="0.0.1"),
        ),
        ("its header says", lambda weights: weights.write_bytes(weights.read_bytes()[:-1])),
        ("its sha256 is not the manifest's", lambda weights: weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")),
        ("in the manifest and not in the image", lambda weights: weights.unlink()),
        ("has no manifest.json", lambda weights: weights.with_name("manifest.json").unlink()),
        ("manifest.json: cannot be read", lambda weights: weights.with_name("manifest.json").write_text("{")),
        ("cut short, or no safetensors file", lambda weights: weights.write_bytes(b"x" * 200)),
    ],
)
def test_each_thing_that_is_wrong_is_found_and_named(
    check: ModuleType, weights: Path, capsys: pytest.CaptureFixture[str], words: str, damage: Callable[[Path], object]
) -> None:
    damage(weights)
    code, report = ask(check, capsys)
    assert code == 1
    assert any(words in line for line in report["wrong"]), report["wrong"]
