"""The commands about the image in docs/tutorials/oke.md and kubernetes.md, typed on the build VM.

Real OpenSSH, Docker and registry; `inv` is forked, and the model comes from a cache. Not covered: the other parts of
the pages (tests/system/tutorials/test_clusters.py).
"""

import json
import shlex
from pathlib import Path

import pytest

from tests.support.cloud_words import CLOUD_WORDS
from tests.support.documents import TUTORIALS, blocks
from tests.support.machines.build_vm import MODEL, PLAIN_REGISTRY, PLAIN_USER, BuildVm

IMAGE_SECTION = "3. The image"


def typed_lines(page: Path) -> list[str]:
    typed = [block for block in blocks(page) if block.section == IMAGE_SECTION and block.is_typed]
    return [line for block in typed for line in block.lines()]


@pytest.mark.timeout(900)
def test_every_command_of_the_image_succeeds_and_names_no_cloud(build_vm: BuildVm) -> None:
    lines = typed_lines(TUTORIALS / "kubernetes.md")
    assert lines == typed_lines(TUTORIALS / "oke.md")
    build_vm.put_model()
    plain = {
        "CLUSTER_PROVIDER": "generic",
        "REGISTRY_IMAGE": f"{PLAIN_REGISTRY}/team/qlora-fleet:1",
        "REGISTRY_USER": PLAIN_USER,
    }
    record = build_vm.project / "results" / "image.json"
    record.unlink(missing_ok=True)
    assert lines[1] == "inv model.fetch"
    for line in lines[:1] + lines[2:]:
        program, *arguments = shlex.split(line)
        assert program == "inv"
        code = 1 if arguments == ["image.verify"] else 0  # the image of the tests has no torch for the trial in it
        done = [build_vm.inv(*build_vm.model_flags(MODEL), *arguments, code=code, **plain)]
    assert json.loads(record.read_text())["repository"] == f"{PLAIN_REGISTRY}/team/qlora-fleet"
    build_vm.write_password_file("wrong")
    done += [build_vm.inv("push", "--force", code=2, **plain)]
    outputs = [completed.stdout + completed.stderr for completed in done]
    assert [output for output in outputs if CLOUD_WORDS.search(output)] == []
