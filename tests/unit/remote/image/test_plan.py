"""The plan of `inv build`. It is pure, so each kind of VM is one line here."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from bench.records.version import VERSION
from remote.image.context import CodeFile, ContextError
from remote.image.engine import DiskInfo, EngineError, EngineFacts, FolderInfo
from remote.image.plan import (
    TORCH_SOURCE_BYTES,
    BuildPlan,
    BuildProfile,
    ImageSpec,
    InsufficientSpace,
    check_free_space,
    check_tmpdir,
    is_built,
    is_outdated,
    plan,
)
from remote.image.settings import ImageSection

FACTS = EngineFacts(data_root="/var/lib/docker", storage_driver="overlay2")
PROFILE = BuildProfile(
    name="current", base="nvidia/cuda:12", python="3.12", stack_bytes=7_550_000_000, runs_on_cpu=True
)
GB = 1_000_000_000
SHARD = 5 * GB


def code(sha256: str = "a" * 64) -> tuple[CodeFile, ...]:
    paths = ("bench/commands/cli.py", "image/locks/current.txt")
    return tuple(CodeFile(source=Path(path), path=path, size=100, sha256=sha256) for path in paths)


SPEC = ImageSpec(
    profile=PROFILE,
    image="qlora-fleet:current",
    section=ImageSection(models=("org/Model",)),
    tmpdir="/mnt/fss",
    code=code(),
    git_sha="c0ffee",
)


def changed(**changes: Any) -> ImageSpec:
    """Return SPEC with changed fields, of its own or of its settings."""
    own = changes.keys() & {field.name for field in dataclasses.fields(SPEC)}
    section = dataclasses.replace(SPEC.section, **{name: changes[name] for name in changes.keys() - own})
    return dataclasses.replace(SPEC, section=section, **{name: changes[name] for name in own})


def folder(path: str, free_gb: float, device: int, **changes: Any) -> FolderInfo:
    info = FolderInfo(
        path=path, exists=True, is_folder=True, kind="ext4", device=device, free_bytes=int(free_gb * GB), writable=True
    )
    return dataclasses.replace(info, **changes)


def model(**changes: Any) -> dict[str, Any]:
    files = [["manifest.json", 300, 300, "d" * 64], ["model.safetensors", SHARD, SHARD, "e" * 64]]
    path = "/mnt/fss/qlora-fleet/models/org--Model"
    return {"name": "org--Model", "folder": path, "found": True, "sha256": "d" * 64, "files": files, **changes}


ROOT = folder("/var/lib/docker", 100, 2)


def disks(tmp: FolderInfo | None = None, models: tuple[dict[str, Any], ...] | None = None) -> DiskInfo:
    return DiskInfo(
        folders=(tmp or folder("/mnt/fss", 500, 1, kind="nfs4"),),
        models=(model(),) if models is None else models,
    )


def plan_of(spec: ImageSpec = SPEC) -> BuildPlan:
    return plan(spec, FACTS, ROOT, disks(), {})


def argv(**changes: Any) -> tuple[str, ...]:
    return plan_of(changed(**changes)).argv


def test_only_torch_from_source_needs_the_compiler() -> None:
    assert not [word for word in argv() if word.startswith(("TORCH=", "TOOLKIT="))]
    profile = dataclasses.replace(PROFILE, cuda="12-8")
    arguments = argv(profile=profile, torch="source")
    toolkit = next(word for word in arguments if word.startswith("TOOLKIT=")).split()
    assert "TORCH=source" in arguments
    assert toolkit[0] == "TOOLKIT=cuda-minimal-build-12-8"
    assert {"cuda-libraries-dev-12-8", "cuda-nvml-dev-12-8"} <= set(toolkit)
    with pytest.raises(ContextError, match=r"^image\.torch: .*current; "):
        argv(torch="source")
    plain, source = (plan_of(changed(profile=profile, torch=torch)) for torch in ("wheel", "source"))
    assert source.needs[1].need_bytes - plain.needs[1].need_bytes == TORCH_SOURCE_BYTES
    assert source.digest != plain.digest


def labels(spec: ImageSpec = SPEC) -> dict[str, str]:
    """Return the labels of an image built as `spec`, parsed from the plan's command."""
    argv = plan_of(spec).argv
    assignments = [argv[index + 1] for index, word in enumerate(argv) if word == "--label"]
    return dict(assignment.split("=", 1) for assignment in assignments)


def test_the_plan_has_the_command_that_runs_and_labels_with_commit_lock_and_models() -> None:
    result = plan_of()
    assert result.argv[:3] == ("docker", "build", "--progress=plain")
    assert result.argv[-1] == result.context == "/mnt/fss/qlora-fleet/context"
    assert {"BASE_IMAGE=nvidia/cuda:12", "PYTHON_VERSION=3.12", "PROFILE=current", "GIT_SHA=c0ffee"} <= set(result.argv)
    assert json.loads(json.dumps(result.to_job()))["argv"] == list(result.argv)
    assert "WEIGHTS=models" in result.argv
    assert not [word for word in argv(models=()) if word.startswith("WEIGHTS=")]
    assert "APT_SNAPSHOT=20260901T000000Z" in argv(apt_snapshot="20260901T000000Z")
    image_labels = labels()
    assert image_labels["org.opencontainers.image.revision"] == "c0ffee"
    assert image_labels["org.opencontainers.image.version"] == VERSION
    assert image_labels["qlora-fleet.lock"] == "a" * 64
    assert json.loads(image_labels["qlora-fleet.models"]) == {"org--Model": "d" * 64}


CHANGES: dict[str, dict[str, Any]] = {
    "code": {"code": code("b" * 64)},
    "commit": {"git_sha": "decaf"},
    "target": {"target": "dev"},
    "base": {"profile": dataclasses.replace(PROFILE, base="nvidia/cuda:13")},
    "packages": {"extra_packages": ("cuda-cupti-12-8",)},
    "snapshot": {"apt_snapshot": "20260901T000000Z"},
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_image_is_rebuilt_when_any_input_changes(change: str) -> None:
    built = labels()
    assert is_built(SPEC, disks(), built)
    assert not is_built(changed(**CHANGES[change]), disks(), built)
    assert not is_built(SPEC, disks(models=(model(sha256="f" * 64),)), built)
    assert not is_built(SPEC, disks(), {})


REFUSALS: dict[str, tuple[dict[str, Any], EngineFacts, str]] = {
    "no tmpdir": ({"tmp": folder("/mnt/fss", 500, 1, exists=False)}, FACTS, r"^--tmpdir /mnt/fss: .*; mount"),
    "read only": ({"tmp": folder("/mnt/fss", 500, 1, writable=False)}, FACTS, r"sudo chown \$USER /mnt/fss"),
    "in memory": ({"tmp": folder("/mnt/fss", 500, 1, kind="tmpfs")}, FACTS, r"is on tmpfs"),
    "data-root on NFS": (
        {"root": folder("/var/lib/docker", 500, 2, kind="nfs4")},
        FACTS,
        r"data-root /var/lib/docker .*nfs4.*; .*docs/reference",
    ),
    "vfs": (
        {},
        dataclasses.replace(FACTS, storage_driver="vfs"),
        r"data-root /var/lib/docker .* vfs.*; ",
    ),
    "engine full": (
        {"root": folder("/var/lib/docker", 30, 2)},
        FACTS,
        r"^/var/lib/docker: 30\.0 GB .* 31\.0 GB; .*`inv vm\.prune`",
    ),
    "share full": ({"tmp": folder("/mnt/fss", 5, 1)}, FACTS, r"^/mnt/fss: 5\.0 GB .* 5\.5 GB; ((?!prune).)*$"),
    "one disk for both": (
        {"tmp": folder("/mnt/fss", 33, 2), "root": folder("/var/lib/docker", 33, 2)},
        FACTS,
        r"^/mnt/fss and /var/lib/docker: 33\.0 GB .* 36\.5 GB",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_vm_that_cannot_build_is_refused_with_a_remedy(case: str) -> None:
    folders, facts, pattern = REFUSALS[case]
    observed = disks(folders.get("tmp"))

    def check() -> None:
        check_tmpdir(observed.folder("/mnt/fss"))
        check_free_space(plan(SPEC, facts, folders.get("root", ROOT), observed, {}), lambda: 0)

    with pytest.raises(InsufficientSpace, match=pattern):
        check()


def test_cached_parts_need_no_space() -> None:
    root, small = folder("/var/lib/docker", 2, 2), disks(folder("/mnt/fss", 2, 1))
    first, cached = plan(SPEC, FACTS, root, small, {}), plan(changed(git_sha="decaf"), FACTS, root, small, labels())
    with pytest.raises(InsufficientSpace):
        check_free_space(first, lambda: 0)
    check_free_space(cached, lambda: 0)


MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "absent": ({"found": False}, "org--Model: .*/mnt/fss/qlora-fleet/models/org--Model; "),
    "half": ({"sha256": None}, "/models/org--Model .*manifest.json.*; "),
    "a shard gone": ({"files": [["model.safetensors", None, SHARD, "e" * 64]]}, "/model.safetensors: .*; "),
    "cut short": ({"files": [["model.safetensors", 7, SHARD, "e" * 64]]}, f"/model.safetensors: 7 bytes, .*{SHARD}; "),
}


@pytest.mark.parametrize("case", MODELS)
def test_an_incomplete_model_is_reported(case: str) -> None:
    changes, pattern = MODELS[case]
    with pytest.raises(EngineError, match=rf"^image\.models: .*{pattern}.*`inv model\.fetch`"):
        plan(SPEC, FACTS, ROOT, disks(models=(model(**changes),)), {})


def test_an_image_is_outdated_if_its_files_differ_but_not_if_only_its_commit_does() -> None:
    built = labels()
    assert not is_outdated(SPEC, built)
    assert not is_outdated(changed(git_sha="c0ffee-dirty", tmpdir="/elsewhere"), built)
    for change in ({"code": code("b" * 64)}, {"models": ()}, {"extra_packages": ("x",)}):
        assert is_outdated(changed(**change), built)
    for labels_of_another in ({}, {**built, "qlora-fleet.models": "[1]"}):
        assert is_outdated(SPEC, labels_of_another)
