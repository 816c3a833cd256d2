"""What `inv build` decides from what it saw: pure, so that every kind of VM is one line here."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from remote.image.context import CodeFile, ContextError
from remote.image.engine import Client, DiskInfo, EngineEndpoint, EngineError, EngineFacts
from remote.image.plan import TORCH_SOURCE_BYTES, BuildProfile, ImageSpec, InsufficientSpace, is_built, outdated, plan

FACTS = EngineFacts(
    api_version="1.41",
    data_root="/var/lib/docker",
    storage_driver="overlay2",
)
PROFILE = BuildProfile(
    name="current", base="nvidia/cuda:12", python="3.12", stack_bytes=7_550_000_000, runs_on_cpu=True
)
GB = 1_000_000_000
SHARD = 5 * GB


def code(sha256: str = "a" * 64) -> tuple[CodeFile, ...]:
    places = ("bench/commands/cli.py", "image/locks/current.txt")
    return tuple(CodeFile(source=Path(place), place=place, size=100, sha256=sha256) for place in places)


WANTED = ImageSpec(
    profile=PROFILE,
    image="qlora-fleet:current",
    target="prod",
    tmpdir="/mnt/fss",
    code=code(),
    models=("org/Model",),
    git_sha="c0ffee",
)


def place(path: str, free_gb: float, device: int, **changes: Any) -> EngineEndpoint:
    made = EngineEndpoint(
        path=path,
        exists=True,
        is_folder=True,
        kind="ext4",
        device=device,
        free_bytes=int(free_gb * GB),
        writable=True,
    )
    return dataclasses.replace(made, **changes)


def model(**changes: Any) -> dict[str, Any]:
    files = [["manifest.json", 300, 300, "d" * 64], ["model.safetensors", SHARD, SHARD, "e" * 64]]
    folder = "/mnt/fss/qlora-fleet/models/org--Model"
    return {"name": "org--Model", "folder": folder, "found": True, "sha256": "d" * 64, "files": files, **changes}


def look(
    tmp: EngineEndpoint | None = None,
    root: EngineEndpoint | None = None,
    models: tuple[dict[str, Any], ...] | None = None,
) -> DiskInfo:
    return DiskInfo(
        places=(tmp or place("/mnt/fss", 500, 1, kind="nfs4"), root or place("/var/lib/docker", 100, 2)),
        models=(model(),) if models is None else models,
        docker_tmpdir=None,
    )


def argv(**changes: Any) -> tuple[str, ...]:
    return plan(dataclasses.replace(WANTED, **changes), FACTS, look(), {}).argv


def test_layers_come_from_a_registry_and_go_there_where_asked() -> None:
    names = ("fra.ocir.io/ns/r:cache", "fra.ocir.io/ns/r:old")
    words = argv(cache_from=names)
    assert [words[index + 1] for index, word in enumerate(words) if word == "--cache-from"] == list(names)
    assert "BUILDKIT_INLINE_CACHE=1" in argv(cache_to="inline")
    assert "--cache-to" not in argv(cache_to="inline")
    words = argv(cache_to=names[0])
    assert words[words.index("--cache-to") + 1] == f"type=registry,ref={names[0]},mode=max"
    assert words[-1] == WANTED.home + "/context"


def test_a_moment_of_the_archive_is_part_of_what_an_image_is_and_a_cache_is_not() -> None:
    known = labels()["qlora-fleet.build"]
    assert labels(dataclasses.replace(WANTED, cache_to="inline", cache_from=("r/c:1",)))["qlora-fleet.build"] == known
    dated = dataclasses.replace(WANTED, apt_snapshot="20260901T000000Z")
    assert labels(dated)["qlora-fleet.build"] != known
    assert "APT_SNAPSHOT=20260901T000000Z" in argv(apt_snapshot="20260901T000000Z")


def test_torch_from_source_and_an_extension_ask_for_the_compiler_and_nothing_else_does() -> None:
    assert not [word for word in argv() if word.startswith(("TORCH=", "EXTENSION=", "TOOLKIT=", "NVCC="))]
    profile = dataclasses.replace(PROFILE, cuda="12-8")
    words = argv(profile=profile, torch="source")
    toolkit = next(word for word in words if word.startswith("TOOLKIT=")).split()
    assert "TORCH=source" in words
    assert toolkit[0] == "TOOLKIT=cuda-minimal-build-12-8"
    assert "cuda-libraries-dev-12-8" in toolkit
    sources = CodeFile(source=Path("x"), place="extension/setup.py", size=1, sha256="b" * 64)
    words = argv(profile=profile, code=(*code(), sources))
    assert "EXTENSION=own" in words
    assert "TORCH=source" not in words
    assert "NVCC=cuda-minimal-build-12-8" in argv(profile=profile, nvcc=True)
    with pytest.raises(ContextError, match=r"image/profiles.yaml: current: cuda: not set"):
        argv(nvcc=True)
    plain, source = (
        plan(dataclasses.replace(WANTED, profile=profile, torch=torch), FACTS, look(), {})
        for torch in ("wheel", "source")
    )
    assert source.needs[1].need_bytes - plain.needs[1].need_bytes == TORCH_SOURCE_BYTES
    assert source.digest != plain.digest


def labels(wanted: ImageSpec = WANTED) -> dict[str, str]:
    """The labels of an image built as `wanted`, read off the plan's own command line."""
    argv = plan(wanted, FACTS, look(), {}).argv
    found = [argv[index + 1] for index, word in enumerate(argv) if word == "--label"]
    return dict(one.split("=", 1) for one in found)


def test_the_plan_is_the_command_that_runs() -> None:
    made = plan(WANTED, FACTS, look(), {})
    assert made.argv[:3] == ("docker", "build", "--progress=plain")
    assert made.argv[-1] == made.context == "/mnt/fss/qlora-fleet/context"
    assert {"BASE_IMAGE=nvidia/cuda:12", "PYTHON_VERSION=3.12", "PROFILE=current", "GIT_SHA=c0ffee"} <= set(made.argv)
    assert json.loads(json.dumps(made.to_job()))["argv"] == list(made.argv)
    assert made.environment["DOCKER_BUILDKIT"] == "1"


def test_labels_name_commit_lock_and_models() -> None:
    found = labels()
    assert found["org.opencontainers.image.revision"] == "c0ffee"
    assert found["qlora-fleet.lock"] == "a" * 64
    assert json.loads(found["qlora-fleet.models"]) == {"org--Model": "d" * 64}


CHANGES: dict[str, dict[str, Any]] = {
    "code": {"code": code("b" * 64)},
    "commit": {"git_sha": "decaf"},
    "target": {"target": "dev"},
    "base": {"profile": dataclasses.replace(PROFILE, base="nvidia/cuda:13")},
    "packages": {"extra_packages": ("cuda-cupti-12-8",)},
}


@pytest.mark.parametrize("what", CHANGES)
def test_an_image_is_built_anew_when_anything_that_makes_it_changes(what: str) -> None:
    built = labels()
    assert is_built(WANTED, look(), built)
    assert not is_built(dataclasses.replace(WANTED, **CHANGES[what]), look(), built)
    assert not is_built(WANTED, look(models=(model(sha256="f" * 64),)), built)
    assert not is_built(WANTED, look(), {})


def test_where_the_engine_answers_decides_nothing_about_what_is_built() -> None:
    elsewhere = dataclasses.replace(WANTED, client=Client(program="/usr/bin/docker", address="unix:///run/other.sock"))
    assert is_built(elsewhere, look(), labels())


REFUSALS: dict[str, tuple[dict[str, Any], EngineFacts, str]] = {
    "no tmpdir": ({"tmp": place("/mnt/fss", 500, 1, exists=False)}, FACTS, r"--tmpdir /mnt/fss: no such folder"),
    "read only": ({"tmp": place("/mnt/fss", 500, 1, writable=False)}, FACTS, r"sudo chown \$USER /mnt/fss"),
    "in memory": ({"tmp": place("/mnt/fss", 500, 1, kind="tmpfs")}, FACTS, r"is on tmpfs"),
    "data-root on NFS": (
        {"root": place("/var/lib/docker", 500, 2, kind="nfs4")},
        FACTS,
        r"data-root /var/lib/docker is on nfs4: BuildKit cannot.* type `inv vm\.engine --tmpdir /mnt/fss`",
    ),
    "vfs": ({}, dataclasses.replace(FACTS, storage_driver="vfs"), r"kept by the storage driver vfs"),
    "engine full": (
        {"root": place("/var/lib/docker", 30, 2)},
        FACTS,
        r"/var/lib/docker: 30\.0 GB free, this build needs 31\.0 GB there; free some \(`docker builder prune`",
    ),
    "share full": ({"tmp": place("/mnt/fss", 5, 1)}, FACTS, r"/mnt/fss: 5\.0 GB free, this build needs 5\.5 GB"),
    "one disk for both": (
        {"tmp": place("/mnt/fss", 33, 2), "root": place("/var/lib/docker", 33, 2)},
        FACTS,
        r"/mnt/fss and /var/lib/docker: 33\.0 GB free, this build needs 36\.5 GB",
    ),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_cannot_be_built_there_is_refused_with_the_remedy(what: str) -> None:
    places, facts, line = REFUSALS[what]
    with pytest.raises(InsufficientSpace, match=line):
        plan(WANTED, facts, look(**places), {})


def test_what_is_cached_already_needs_no_room() -> None:
    small = look(root=place("/var/lib/docker", 2, 2), tmp=place("/mnt/fss", 2, 1))
    with pytest.raises(InsufficientSpace):
        plan(WANTED, FACTS, small, {})
    assert plan(dataclasses.replace(WANTED, git_sha="decaf"), FACTS, small, labels()).needs


MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "absent": ({"found": False}, "not on the VM at /mnt/fss/qlora-fleet/models/org--Model; `inv model.fetch`"),
    "half": ({"sha256": None}, "has no readable manifest.json, so it may be half a model"),
    "a shard gone": ({"files": [["model.safetensors", None, SHARD, "e" * 64]]}, "model.safetensors: not there"),
    "cut short": ({"files": [["model.safetensors", 7, SHARD, "e" * 64]]}, f"7 bytes, its manifest says {SHARD}"),
}


@pytest.mark.parametrize("what", MODELS)
def test_a_model_that_is_not_whole_is_named(what: str) -> None:
    changes, line = MODELS[what]
    with pytest.raises(EngineError, match=re.escape(line)):
        plan(WANTED, FACTS, look(models=(model(**changes),)), {})


def test_an_image_is_outdated_where_its_files_differ_and_not_where_its_commit_does() -> None:
    built = labels()
    assert outdated(WANTED, built) == ()
    assert outdated(dataclasses.replace(WANTED, git_sha="c0ffee-dirty", tmpdir="/elsewhere"), built) == ()
    assert outdated(dataclasses.replace(WANTED, code=code("b" * 64)), built) == ("its packages",)
    first, lock = code()
    edited = (dataclasses.replace(first, sha256="b" * 64), lock)
    assert outdated(dataclasses.replace(WANTED, code=edited), built) == ("its code, or a setting of it",)
    assert outdated(dataclasses.replace(WANTED, models=()), built) == ("its models",)
    assert outdated(dataclasses.replace(WANTED, extra_packages=("x",)), built) == ("its code, or a setting of it",)
    assert "its profile" in outdated(WANTED, {})
    assert outdated(WANTED, {**built, "qlora-fleet.models": "[1]"}) == ("its models",)
