"""The build context: our files by digest, weights in slots."""

import dataclasses
import re
from pathlib import Path

import pytest

from remote.image.context import SLOTS, ContextError, ModelFolder, assign_slots, code_files, digest_of_code
from remote.jobs.transfer import FileEntry
from tests.support.paths import ROOT


def model(name: str, *files: tuple[str, int]) -> ModelFolder:
    entries = tuple(FileEntry(path=path, size=size, sha256="0" * 64) for path, size in files)
    return ModelFolder(name=name, folder=f"/share/{name}", files=entries, manifest_sha256="1" * 64)


MISTRAL = model(
    "mistralai--Mistral-7B-Instruct-v0.3",
    ("tokenizer.json", 1_960_000),
    ("model-00002-of-00003.safetensors", 4_999_819_336),
    ("model-00001-of-00003.safetensors", 4_949_453_792),
    ("model-00003-of-00003.safetensors", 4_546_807_800),
    ("config.json", 601),
    ("manifest.json", 1_400),
)


def test_every_shard_has_its_own_slot_and_the_small_files_share_the_next() -> None:
    packed = assign_slots([MISTRAL])
    assert [(file.slot, file.place.rpartition("/")[2]) for file in packed] == [
        (0, "model-00001-of-00003.safetensors"),
        (1, "model-00002-of-00003.safetensors"),
        (2, "model-00003-of-00003.safetensors"),
        (3, "config.json"),
        (3, "manifest.json"),
        (3, "tokenizer.json"),
    ]
    assert packed[0].source == "/share/mistralai--Mistral-7B-Instruct-v0.3/model-00001-of-00003.safetensors"
    assert packed[0].place == "models/mistralai--Mistral-7B-Instruct-v0.3/model-00001-of-00003.safetensors"


def test_a_model_added_at_the_end_keeps_the_slots_of_the_first() -> None:
    other = model("org--Other", ("model.safetensors", 100), ("config.json", 10))
    both = assign_slots([MISTRAL, other])
    assert both[: len(MISTRAL.files)] == assign_slots([MISTRAL])
    assert [file.slot for file in both[len(MISTRAL.files) :]] == [4, 5]


def test_more_shards_than_the_dockerfile_has_lines_for_are_refused() -> None:
    fits = model("org--Big", *((f"model-{number:05d}.safetensors", 10) for number in range(SLOTS)))
    assert len(assign_slots([fits])) == SLOTS
    with pytest.raises(ContextError, match=rf"^image\.models: org--Big, org--More .*\b{SLOTS + 1}\b.*\b{SLOTS}\b"):
        assign_slots([fits, model("org--More", ("a.safetensors", 1))])


def test_a_file_too_large_for_a_layer_is_refused_by_name() -> None:
    with pytest.raises(ContextError, match=r"^/share/org--Big/model\.safetensors: 9\.0 GB"):
        assign_slots([model("org--Big", ("model.safetensors", 9_000_000_000))])


def test_the_dockerfile_has_exactly_the_planned_slots() -> None:
    lines = re.findall(r"^ADD model\[s\]/(\d\d)\.tar /$", (ROOT / "image/Dockerfile").read_text(), re.MULTILINE)
    assert lines == [f"{slot:02d}" for slot in range(SLOTS)]


@pytest.mark.parametrize("profile", ["current", "reference"])
def test_the_context_has_only_what_the_dockerfile_copies(profile: str) -> None:
    paths = {file.path for file in code_files(ROOT, profile)}
    assert {"image/Dockerfile", "image/selfcheck.py", f"image/locks/{profile}.txt"} <= paths
    assert {"bench/__main__.py", "bench/machine/gpu_specs.json"} <= paths
    assert not [path for path in paths if path.split("/")[0] not in ("bench", "image") or "__pycache__" in path]


def test_the_digest_of_our_files_changes_with_content_and_path() -> None:
    files = code_files(ROOT, "current")
    digest = digest_of_code(files)
    assert digest_of_code(reversed(files)) == digest
    assert digest_of_code(files[1:]) != digest
    assert digest_of_code([dataclasses.replace(files[0], path="other"), *files[1:]]) != digest


def test_a_profile_without_a_lock_and_a_folder_without_wheels_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ContextError, match=r"^image/locks/none\.in: "):
        code_files(ROOT, "none")
    with pytest.raises(ContextError, match=rf"^image\.wheels: {tmp_path}: .*`pip download --dest {tmp_path}"):
        code_files(ROOT, "current", tmp_path)
