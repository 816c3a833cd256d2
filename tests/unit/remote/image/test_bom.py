"""Bills of materials and provenance, validated with the standards' own schemas and readers.

CycloneDX's schema comes with its package. No light package has SPDX's schema: download `schemas/spdx-schema.json` at
tag v2.3 of github.com/spdx/spdx-spec, and set QLORA_FLEET_SPDX_SCHEMA to its path. SPDX's reader is installed by `pip
install spdx-tools`.
"""

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from remote.agent.scripts import inventory
from remote.image import bom
from tests.support.paths import ROOT

SHA = "ab" * 32
INVENTORY: dict[str, Any] = {
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
SUBJECT = bom.Subject(
    repository="fra.ocir.io/ns/qlora-fleet",
    digest=f"sha256:{SHA}",
    pushed_at="2026-11-22T11:00:00Z",
    labels={
        "org.opencontainers.image.revision": "0123456789-dirty",
        "org.opencontainers.image.base.name": "nvidia/cuda:12.8.1-base-ubuntu24.04",
        "qlora-fleet.lock": SHA,
        "qlora-fleet.build": SHA,
    },
)


def test_cyclonedx_document_is_valid_by_its_own_schema() -> None:
    document = bom.cyclonedx(SUBJECT, bom.list_components(INVENTORY, LOCK))
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document)) is None
    by_name = {component["name"]: component for component in document["components"]}
    assert by_name["numpy"]["licenses"] == [{"expression": "BSD-3-Clause AND 0BSD"}]
    assert len(by_name["numpy"]["externalReferences"][0]["hashes"]) == 2
    assert by_name["libc6"]["purl"] == "pkg:deb/ubuntu/libc6@2.39-0ubuntu8?arch=amd64"
    assert by_name["org/A"]["components"][0]["hashes"] == [{"alg": "SHA-256", "content": SHA}]


def test_spdx_document_lists_every_component_once() -> None:
    document = bom.spdx(SUBJECT, bom.list_components(INVENTORY, LOCK))
    packages = {package["name"]: package for package in document["packages"]}
    assert len({package["SPDXID"] for package in document["packages"]}) == len(document["packages"]) == 6
    related = {relation["relatedSpdxElement"] for relation in document["relationships"]}
    assert related == {package["SPDXID"] for package in document["packages"]}
    assert packages["torch"]["licenseDeclared"] == "NOASSERTION"
    assert packages["torch"]["licenseComments"] == "the package says: BSD License"
    assert packages["torch"]["checksums"] == [{"algorithm": "SHA256", "checksumValue": SHA}]
    assert "checksums" not in packages["numpy"], "it is not known which of two files was installed"
    assert packages["odd"]["licenseDeclared"] == "NOASSERTION"


def test_components_that_differ_only_in_punctuation_or_architecture_have_unique_identifiers() -> None:
    (numpy, _, odd), (libc,) = INVENTORY["python"], INVENTORY["debian"]
    changed = INVENTORY | {
        "python": [numpy, odd, odd | {"version": "1-2-cu128"}],
        "debian": [libc, libc | {"architecture": "i386"}],
    }
    components = bom.list_components(changed, LOCK)
    spdx_ids = {package["SPDXID"] for package in bom.spdx(SUBJECT, components)["packages"]}
    assert len(spdx_ids) == 1 + len(components)
    references = {component["bom-ref"] for component in bom.cyclonedx(SUBJECT, components)["components"]}
    assert len(references) == len(components)


def test_components_have_suppliers_and_debian_packages_their_distribution() -> None:
    (libc,), (numpy, *_) = INVENTORY["debian"], INVENTORY["python"]
    changed = INVENTORY | {
        "distribution": "ubuntu-24.04",
        "debian": [libc | {"supplier": "Ubuntu Developers"}],
        "python": [numpy | {"supplier": "Travis E. Oliphant"}],
    }
    components = bom.list_components(changed, LOCK)
    assert [component.supplier for component in components] == ["Travis E. Oliphant", "Ubuntu Developers", "org"]
    assert components[1].purl == "pkg:deb/ubuntu/libc6@2.39-0ubuntu8?arch=amd64&distro=ubuntu-24.04"
    names = [component["supplier"]["name"] for component in bom.cyclonedx(SUBJECT, components)["components"]]
    assert names == ["Travis E. Oliphant", "Ubuntu Developers", "org"]
    suppliers = [package.get("supplier") for package in bom.spdx(SUBJECT, components)["packages"]]
    assert suppliers[1:] == [f"Organization: {name}" for name in names]


def components_of_this_machine() -> list[bom.SbomComponent]:
    """List this machine's packages: hundreds of real names, versions and licences."""
    root = Path("/")
    packages = {"python": inventory.python_packages(), "debian": inventory.debian_packages(root)}
    return bom.list_components({**INVENTORY, **packages, "system": inventory.system(root)}, LOCK)


def test_cyclonedx_document_of_this_machine_is_valid_by_its_own_schema() -> None:
    document = bom.cyclonedx(SUBJECT, components_of_this_machine())
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document)) is None


@pytest.mark.skipif("QLORA_FLEET_SPDX_SCHEMA" not in os.environ, reason="QLORA_FLEET_SPDX_SCHEMA is not set")
def test_spdx_document_is_valid_by_its_own_schema() -> None:
    schema = json.loads(Path(os.environ["QLORA_FLEET_SPDX_SCHEMA"]).read_text())
    validator = jsonschema.validators.validator_for(schema)(schema)
    assert schema["$id"] == "http://spdx.org/rdf/terms/2.3"
    for components in (bom.list_components(INVENTORY, LOCK), components_of_this_machine()):
        assert [error.message for error in validator.iter_errors(bom.spdx(SUBJECT, components))] == []


def test_spdx_own_reader_reports_no_errors() -> None:
    reader = pytest.importorskip("spdx_tools.spdx.parser.jsonlikedict.json_like_dict_parser", reason="no spdx-tools")
    validation = pytest.importorskip("spdx_tools.spdx.validation.document_validator", reason="no spdx-tools")
    document = reader.JsonLikeDictParser().parse(bom.spdx(SUBJECT, components_of_this_machine()))
    assert validation.validate_full_spdx_document(document) == []


def test_provenance_lists_what_the_image_was_built_from() -> None:
    statement = bom.provenance(SUBJECT, base_digest="ef" * 32, parameters={"profile": "current"})
    assert (statement["_type"], statement["predicateType"]) == (
        "https://in-toto.io/Statement/v1",
        "https://slsa.dev/provenance/v1",
    )
    assert statement["subject"] == [{"name": SUBJECT.repository, "digest": {"sha256": SHA}}]
    dependencies = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    sources = {dependency["name"]: dependency for dependency in dependencies}
    assert sources["source"] == {
        "name": "source",
        "digest": {"gitCommit": "0123456789"},
        "annotations": {"changed": True},
    }
    assert sources["nvidia/cuda:12.8.1-base-ubuntu24.04"]["digest"] == {"sha256": "ef" * 32}


@pytest.mark.parametrize("profile", ["current", "reference"])
def test_every_package_of_a_real_lock_has_its_hashes(profile: str) -> None:
    text = (ROOT / "image" / "locks" / f"{profile}.txt").read_text()
    hashes = bom.parse_lock_hashes(text)
    assert sum(map(len, hashes.values())) == text.count("--hash=")
    assert all(hashes.values())


def test_debian_packages_and_models_are_read_from_the_image(tmp_path: Path) -> None:
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "usr/share/doc/tini").mkdir(parents=True)
    (tmp_path / "models/org--A").mkdir(parents=True)
    maintainer = "Ubuntu Developers <ubuntu-devel@lists.ubuntu.com>"
    status = (
        f"Package: tini\nStatus: install ok installed\nArchitecture: amd64\nVersion: 0.19\nMaintainer: {maintainer}\n\n"
    )
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('ID=ubuntu\nVERSION_ID="24.04"\n')
    assert inventory.distribution(tmp_path) == "ubuntu-24.04"
    assert inventory.distribution(tmp_path / "models") is None
    (tmp_path / "var/lib/dpkg/status").write_text(f"{status}Package: gone\nStatus: deinstall ok config-files\n")
    (tmp_path / "usr/share/doc/tini/copyright").write_text(
        "Format: x\n\nFiles: *\nLicense: Expat\n\nLicense: Expat\n text\n"
    )
    files = [{"path": "config.json", "size": 2, "sha256": SHA}]
    (tmp_path / "models/org--A/manifest.json").write_text(
        json.dumps({"model": "org/A", "revision": "c", "files": files})
    )
    assert inventory.debian_packages(tmp_path) == [
        {"name": "tini", "version": "0.19", "architecture": "amd64", "supplier": maintainer, "licence": "Expat"}
    ]
    assert inventory.python_supplier({"Maintainer": "UNKNOWN", "Author": "A\n  B"}) == "A B"
    (model,) = inventory.models(tmp_path)
    assert (model["name"], model["revision"], model["files"]) == ("org/A", "c", files)
    assert "pytest" in [python_package["name"] for python_package in inventory.python_packages()]
