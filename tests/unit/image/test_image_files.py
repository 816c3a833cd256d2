"""The image's files: a Dockerfile for old engines, complete locks, a self-check that finds faults."""

import hashlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tasks import ns
from tasks.settings.sections import SETTINGS
from tests.support.paths import ROOT

IMAGE = ROOT / "image"
PROFILES: dict[str, Any] = yaml.safe_load((IMAGE / "profiles.yaml").read_text())
DOCKERFILE = (IMAGE / "Dockerfile").read_text()


def test_the_dockerfile_needs_no_frontend_download() -> None:
    assert not re.search(r"^#\s*syntax\s*=", DOCKERFILE, re.MULTILINE | re.IGNORECASE)
    assert "<<" not in DOCKERFILE
    assert "--link" not in DOCKERFILE


def test_the_arguments_defaults_are_the_default_profile() -> None:
    defaults = dict(re.findall(r"^ARG (\w+)=(.*)$", DOCKERFILE, re.MULTILINE))
    assert defaults["BASE_IMAGE"] == PROFILES["current"]["base"]
    assert defaults["PYTHON_VERSION"] == PROFILES["current"]["python"]
    assert (defaults["PROFILE"], defaults["WEIGHTS"]) == ("current", "base")


@pytest.mark.parametrize("profile", PROFILES)
def test_a_lock_has_every_required_package_in_one_version_with_hashes(profile: str) -> None:
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


def test_the_tests_run_with_the_images_versions_of_what_models_are_loaded_by() -> None:
    installed, locked = (
        dict(re.findall(r"(?m)^([\w-]+)==([\w.]+)", (ROOT / name).read_text().replace("_", "-")))
        for name in ("constraints.txt", "image/locks/current.txt")
    )
    names = "transformers tokenizers peft bitsandbytes accelerate safetensors huggingface-hub liger-kernel pyarrow"
    assert {name: installed[name] for name in names.split()} == {name: locked[name] for name in names.split()}


def test_the_ci_example_uses_existing_tasks_and_settings_and_no_secret_arguments() -> None:
    text = (ROOT / "docs" / "ci-image.yaml").read_text()
    (job,) = yaml.safe_load(text)["jobs"].values()
    lines = [line for step in job["steps"] for line in step.get("run", "").splitlines()]
    commands = [line.split("#")[0].split()[1:] for line in lines if line.startswith("inv ")]
    assert [command[0] for command in commands] == ["build", "image.verify", "push"]
    for name, *flags in commands:
        known = {flag for argument in ns[name].get_arguments() for flag in argument.names}
        assert {flag.removeprefix("--") for flag in flags} <= known, name
    settings = {f"INVOKE_{'_'.join(path).upper()}" for path in SETTINGS}
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
    """The weights of the only model in the image."""
    model = tmp_path / "models" / "org--M"
    model.mkdir(parents=True)
    weights = model / "model.safetensors"
    weights.write_bytes(bytes(100))
    sha256 = hashlib.sha256(weights.read_bytes()).hexdigest()
    files = [{"path": weights.name, "size": weights.stat().st_size, "sha256": sha256}]
    (model / "manifest.json").write_text(json.dumps({"files": files}))
    return weights


def run_check(check: ModuleType, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = check.main()
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, report


def test_a_complete_image_passes(check: ModuleType, weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = run_check(check, capsys)
    assert (code, report["wrong"]) == (0, [])
    assert set(report["packages"]) == {"pydantic", "pyyaml"}
    manifest = weights.with_name("manifest.json")
    (model,) = report["models"]
    assert model["manifest_sha256"] == hashlib.sha256(manifest.read_bytes()).hexdigest()
    assert model["bytes"] == weights.stat().st_size + manifest.stat().st_size


@pytest.mark.parametrize(
    ("fault", "damage"),
    [
        (
            r"not-installed-anywhere: 1\b",
            lambda weights: write_lock(weights.parents[2], "not-installed-anywhere", version="1"),
        ),
        (
            r"pydantic: .*0\.0\.1",
            lambda weights: write_lock(weights.parents[2], "pydantic", version="0.0.1"),
        ),
        (
            r"models/org--M/model\.safetensors: 99 bytes, .* 100$",
            lambda weights: weights.write_bytes(weights.read_bytes()[:-1]),
        ),
        (
            r"models/org--M/model\.safetensors: .*sha256",
            lambda weights: weights.write_bytes(weights.read_bytes()[:-1] + b"\x01"),
        ),
        (r"models/org--M/model\.safetensors: .*manifest", lambda weights: weights.unlink()),
        (r"models/org--M: .*manifest\.json", lambda weights: weights.with_name("manifest.json").unlink()),
        (r"models/org--M/manifest\.json: ", lambda weights: weights.with_name("manifest.json").write_text("{")),
    ],
)
def test_each_fault_is_reported(
    check: ModuleType, weights: Path, capsys: pytest.CaptureFixture[str], fault: str, damage: Callable[[Path], object]
) -> None:
    damage(weights)
    code, report = run_check(check, capsys)
    assert code == 1
    assert any(re.match(fault, line) for line in report["wrong"]), report["wrong"]
