"""The bill of materials and the statement, held against the standards' own schemas and readers.

CycloneDX's schema comes with its package. SPDX's comes with none that is light: get `schemas/spdx-schema.json` at tag
v2.3 of github.com/spdx/spdx-spec, and name it in QLORA_FLEET_SPDX_SCHEMA. SPDX's own reader: `pip install spdx-tools`.
"""

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from remote.image.sbom import bom
from remote.image.vm_agent.scripts import inventory
from tests.support.paths import ROOT

SHA = "ab" * 32
HELD: dict[str, Any] = {
    "system": "ubuntu",
    "python": [
        {"name": "numpy", "version": "2.4", "expression": "BSD-3-Clause AND 0BSD", "licence": None},
        {"name": "torch", "version": "2.10.0", "expression": None, "licence": "BSD License"},
        {"name": "odd", "version": "1!2+cu128", "expression": "Some (odd) thing/else", "licence": None},
    ],
    "debian": [{"name": "libc6", "version": "2.39-0ubuntu8", "architecture": "amd64", "licence": "LGPL-2.1"}],
    "models": [
        {
            "name": "org/A",
            "revision": "c0ffee",
            "manifest_sha256": SHA,
            "files": [{"path": "model.safetensors", "size": 3, "sha256": SHA}],
        }
    ],
}
LOCK = f"""numpy==2.4 \\
    --hash=sha256:{SHA} \\
    --hash=sha256:{"cd" * 32}
    # via torch
torch==2.10.0 \\
    --hash=sha256:{SHA}
"""
ABOUT = bom.Subject(
    repository="fra.ocir.io/ns/qlora-fleet",
    digest=f"sha256:{SHA}",
    moment="2026-11-22T11:00:00Z",
    labels={
        "org.opencontainers.image.revision": "0123456789-dirty",
        "org.opencontainers.image.base.name": "nvidia/cuda:12.8.1-base-ubuntu24.04",
        "qlora-fleet.lock": SHA,
        "qlora-fleet.build": SHA,
    },
)


def test_the_bill_of_materials_is_valid_by_cyclonedx_own_schema() -> None:
    document = bom.cyclonedx(ABOUT, bom.parts(HELD, LOCK))
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document)) is None
    by_name = {one["name"]: one for one in document["components"]}
    assert by_name["numpy"]["licenses"] == [{"expression": "BSD-3-Clause AND 0BSD"}]
    assert len(by_name["numpy"]["externalReferences"][0]["hashes"]) == 2
    assert by_name["libc6"]["purl"] == "pkg:deb/ubuntu/libc6@2.39-0ubuntu8?arch=amd64"
    assert by_name["org/A"]["components"][0]["hashes"] == [{"alg": "SHA-256", "content": SHA}]


def test_the_same_as_spdx_names_every_part_once() -> None:
    document = bom.spdx(ABOUT, bom.parts(HELD, LOCK))
    packages = {one["name"]: one for one in document["packages"]}
    assert len({one["SPDXID"] for one in document["packages"]}) == len(document["packages"]) == 6
    related = {one["relatedSpdxElement"] for one in document["relationships"]}
    assert related == {one["SPDXID"] for one in document["packages"]}
    assert packages["torch"]["licenseDeclared"] == "NOASSERTION"
    assert packages["torch"]["licenseComments"] == "the package says: BSD License"
    assert packages["torch"]["checksums"] == [{"algorithm": "SHA256", "checksumValue": SHA}]
    assert "checksums" not in packages["numpy"], "which of two files was installed is not known"
    assert packages["odd"]["licenseDeclared"] == "NOASSERTION"


def test_parts_that_differ_in_a_sign_or_in_the_architecture_alone_have_references_of_their_own() -> None:
    (numpy, _, odd), (libc,) = HELD["python"], HELD["debian"]
    held = HELD | {
        "python": [numpy, odd, odd | {"version": "1-2-cu128"}],
        "debian": [libc, libc | {"architecture": "i386"}],
    }
    inside = bom.parts(held, LOCK)
    assert len({one["SPDXID"] for one in bom.spdx(ABOUT, inside)["packages"]}) == 1 + len(inside)
    assert len({one["bom-ref"] for one in bom.cyclonedx(ABOUT, inside)["components"]}) == len(inside)


def of_this_machine() -> list[bom.SbomComponent]:
    """What is installed here: hundreds of names, versions and licences as people write them."""
    here = Path("/")
    found = {"python": inventory.python_packages(), "debian": inventory.debian_packages(here)}
    return bom.parts({**HELD, **found, "system": inventory.system(here)}, LOCK)


def test_what_is_installed_here_is_valid_by_cyclonedx_own_schema() -> None:
    document = bom.cyclonedx(ABOUT, of_this_machine())
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document)) is None


@pytest.mark.skipif("QLORA_FLEET_SPDX_SCHEMA" not in os.environ, reason="QLORA_FLEET_SPDX_SCHEMA names no file")
def test_it_is_valid_by_spdx_own_schema() -> None:
    schema = json.loads(Path(os.environ["QLORA_FLEET_SPDX_SCHEMA"]).read_text())
    kind = jsonschema.validators.validator_for(schema)
    assert schema["$id"] == "http://spdx.org/rdf/terms/2.3"
    for inside in (bom.parts(HELD, LOCK), of_this_machine()):
        assert [iter_error.message for iter_error in kind(schema).iter_errors(bom.spdx(ABOUT, inside))] == []


def test_spdx_own_reader_finds_nothing_to_mend() -> None:
    reader = pytest.importorskip("spdx_tools.spdx.parser.jsonlikedict.json_like_dict_parser", reason="no spdx-tools")
    validation = pytest.importorskip("spdx_tools.spdx.validation.document_validator", reason="no spdx-tools")
    read = reader.JsonLikeDictParser().parse(bom.spdx(ABOUT, of_this_machine()))
    assert validation.validate_full_spdx_document(read) == []


def test_the_statement_names_what_the_image_was_built_from() -> None:
    made = bom.provenance(ABOUT, base_digest="ef" * 32, parameters={"profile": "current"})
    assert (made["_type"], made["predicateType"]) == (
        "https://in-toto.io/Statement/v1",
        "https://slsa.dev/provenance/v1",
    )
    assert made["subject"] == [{"name": ABOUT.repository, "digest": {"sha256": SHA}}]
    sources = {one["name"]: one for one in made["predicate"]["buildDefinition"]["resolvedDependencies"]}
    assert sources["source"] == {
        "name": "source",
        "digest": {"gitCommit": "0123456789"},
        "annotations": {"changed": True},
    }
    assert sources["nvidia/cuda:12.8.1-base-ubuntu24.04"]["digest"] == {"sha256": "ef" * 32}


@pytest.mark.parametrize("profile", ["current", "reference"])
def test_every_package_of_a_real_lock_has_its_hashes(profile: str) -> None:
    text = (ROOT / "image" / "locks" / f"{profile}.txt").read_text()
    found = bom.locked(text)
    assert sum(map(len, found.values())) == text.count("--hash=")
    assert all(found.values())


def test_debian_packages_and_models_are_read_from_the_image(tmp_path: Path) -> None:
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "usr/share/doc/tini").mkdir(parents=True)
    (tmp_path / "models/org--A").mkdir(parents=True)
    status = "Package: tini\nStatus: install ok installed\nArchitecture: amd64\nVersion: 0.19\n\n"
    (tmp_path / "var/lib/dpkg/status").write_text(f"{status}Package: gone\nStatus: deinstall ok config-files\n")
    (tmp_path / "usr/share/doc/tini/copyright").write_text(
        "Format: x\n\nFiles: *\nLicense: Expat\n\nLicense: Expat\n text\n"
    )
    files = [{"path": "config.json", "size": 2, "sha256": SHA}]
    (tmp_path / "models/org--A/manifest.json").write_text(
        json.dumps({"model": "org/A", "revision": "c", "files": files})
    )
    assert inventory.debian_packages(tmp_path) == [
        {"name": "tini", "version": "0.19", "architecture": "amd64", "licence": "Expat"}
    ]
    (model,) = inventory.models(tmp_path)
    assert (model["name"], model["revision"], model["files"]) == ("org/A", "c", files)
    assert "pytest" in [python_package["name"] for python_package in inventory.python_packages()]
