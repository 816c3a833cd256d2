"""What goes into the build context: our files by digest, weights into slots."""

import dataclasses
import re
from pathlib import Path

import pytest

from remote.image.context import SLOTS, ContextError, ModelFolder, code_files, digest_of_code, slots
from remote.jobs.transfer import FileEntry
from tests.support.paths import ROOT


def model(name: str, *files: tuple[str, int]) -> ModelFolder:
    made = tuple(FileEntry(path=path, size=size, sha256="0" * 64) for path, size in files)
    return ModelFolder(name=name, folder=f"/share/{name}", files=made, manifest_sha256="1" * 64)


MISTRAL = model(
    "mistralai--Mistral-7B-Instruct-v0.3",
    ("tokenizer.json", 1_960_000),
    ("model-00002-of-00003.safetensors", 4_999_819_336),
    ("model-00001-of-00003.safetensors", 4_949_453_792),
    ("model-00003-of-00003.safetensors", 4_546_807_800),
    ("config.json", 601),
    ("manifest.json", 1_400),
)


def test_every_shard_has_a_slot_of_its_own_and_the_small_files_share_the_next() -> None:
    packed = slots([MISTRAL])
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


def test_another_model_at_the_end_moves_none_of_the_first() -> None:
    other = model("org--Other", ("model.safetensors", 100), ("config.json", 10))
    both = slots([MISTRAL, other])
    assert both[: len(MISTRAL.files)] == slots([MISTRAL])
    assert [file.slot for file in both[len(MISTRAL.files) :]] == [4, 5]


def test_a_model_without_small_files_leaves_no_slot_empty() -> None:
    only = model("org--A", ("a.safetensors", 1))
    assert [file.slot for file in slots([only, dataclasses.replace(only, name="org--B")])] == [0, 1]


def test_more_shards_than_the_dockerfile_has_lines_for_are_refused() -> None:
    fits = model("org--Big", *((f"model-{number:05d}.safetensors", 10) for number in range(SLOTS)))
    assert len(slots([fits])) == SLOTS
    with pytest.raises(ContextError, match=rf"org--Big, org--More are {SLOTS + 1} layers, the Dockerfile has {SLOTS}"):
        slots([fits, model("org--More", ("a.safetensors", 1))])


def test_a_file_that_no_registry_takes_as_a_layer_is_refused_by_name() -> None:
    with pytest.raises(ContextError, match=r"/share/org--Big/model\.safetensors: 9\.0 GB in one file"):
        slots([model("org--Big", ("model.safetensors", 9_000_000_000))])


def test_the_dockerfile_has_exactly_the_slots_that_are_planned_with() -> None:
    lines = re.findall(r"^ADD model\[s\]/(\d\d)\.tar /$", (ROOT / "image/Dockerfile").read_text(), re.MULTILINE)
    assert lines == [f"{slot:02d}" for slot in range(SLOTS)]


@pytest.mark.parametrize("profile", ["current", "reference"])
def test_the_context_holds_what_the_dockerfile_copies_and_no_more(profile: str) -> None:
    places = {file.place for file in code_files(ROOT, profile)}
    assert {"image/Dockerfile", "image/selfcheck.py", f"image/locks/{profile}.txt"} <= places
    assert {"bench/__main__.py", "bench/machine/gpu_specs.json", "bench/kernels/decode/products.cu"} <= places
    assert not [place for place in places if place.split("/")[0] not in ("bench", "image") or "__pycache__" in place]


def test_the_digest_of_our_files_tells_every_change_of_content_or_place() -> None:
    files = code_files(ROOT, "current")
    digest = digest_of_code(files)
    assert digest_of_code(reversed(files)) == digest
    assert digest_of_code(files[1:]) != digest
    assert digest_of_code([dataclasses.replace(files[0], place="other"), *files[1:]]) != digest


def test_a_profile_without_a_lock_and_a_folder_without_wheels_are_named(tmp_path: Path) -> None:
    with pytest.raises(ContextError, match=r"image/locks/none\.in: not found"):
        code_files(ROOT, "none")
    with pytest.raises(ContextError, match=r"image\.wheels: .*no wheels in it"):
        code_files(ROOT, "current", tmp_path)


def test_an_extension_s_sources_go_along_and_what_was_built_of_them_does_not(tmp_path: Path) -> None:
    for name in ("setup.py", "src/kernel.cu", "build/kernel.o", "src/__pycache__/x.pyc", ".git/HEAD"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [file.place for file in code_files(ROOT, "current", extension=tmp_path)]
    assert [place for place in found if place.startswith("extension/")] == [
        "extension/setup.py",
        "extension/src/kernel.cu",
    ]
    (tmp_path / "setup.py").unlink()
    with pytest.raises(ContextError, match=r"image\.extension: .*: no pyproject.toml and no setup.py"):
        code_files(ROOT, "current", extension=tmp_path)


def test_an_extension_s_link_to_a_file_elsewhere_is_refused(tmp_path: Path) -> None:
    folder, secret = tmp_path / "extension", tmp_path / "id_ed25519"
    folder.mkdir()
    (folder / "setup.py").touch()
    (folder / "again.py").symlink_to("setup.py")
    secret.touch()
    assert "extension/again.py" in {file.place for file in code_files(ROOT, "current", extension=folder)}
    (folder / "data").symlink_to(secret)
    with pytest.raises(ContextError, match=rf"image\.extension: .*/data: leads out of the folder, to {secret}; put a"):
        code_files(ROOT, "current", extension=folder)
