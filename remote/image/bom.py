"""Bills of materials of an image in CycloneDX 1.6 and SPDX 2.3, and its build provenance as an in-toto statement.

Pure: computes documents from the image's inventory (`remote.agent.scripts.inventory`), the lock, and the
image's labels. The lock has the hashes of all files that the index has for a version. It is not known which of them was
installed, so the hashes are listed with the distribution's source, not with the component. The statement is not signed:
it describes what `inv build` did, and proves nothing to a reader who does not trust the registry. Not covered: files
that no package owns.
"""

import hashlib
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

CYCLONEDX, SPDX, PROVENANCE = (
    "application/vnd.cyclonedx+json",
    "application/spdx+json",
    "application/vnd.in-toto+json",
)
_NO_ASSERTION = "NOASSERTION"
_EXPRESSION = re.compile(r"[A-Za-z0-9.+-]+(?: (?:AND|OR|WITH) [A-Za-z0-9.+-]+)*\Z")
_LOCK_ENTRY = re.compile(
    r"^([a-z0-9][a-z0-9._-]*)==([^\s\\;]+)[^\n]*\\?((?:\n    --hash=sha256:[0-9a-f]{64} ?\\?)*)", re.MULTILINE
)
TOOL = "qlora-fleet"


@dataclass(frozen=True, kw_only=True)
class SbomComponent:
    """A part of the image. `kind` is python, debian or model; `files` are a model's; `lock_hashes` are sha256."""

    kind: str
    name: str
    version: str
    purl: str
    licence_expression: str | None = None
    licence: str | None = None
    supplier: str | None = None
    lock_hashes: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()

    @property
    def identifier(self) -> str:
        """The identifier in the documents: readable, in SPDX's character set, made unique by a digest of the purl."""
        readable = re.sub(r"[^A-Za-z0-9.-]", "-", f"{self.name}-{self.version}")
        return f"{self.kind}-{readable}-{hashlib.sha256(self.purl.encode()).hexdigest()[:8]}"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The image that the documents describe: repository, digest (sha256:...), time of the push, labels."""

    repository: str
    digest: str
    pushed_at: str
    labels: Mapping[str, str]

    @property
    def sha256(self) -> str:
        return self.digest.removeprefix("sha256:")


def parse_lock_hashes(text: str) -> dict[tuple[str, str], tuple[str, ...]]:
    """Parse locks: a package's name and version to the sha256 of each file that they allow."""
    return {(match[1], match[2]): tuple(re.findall(r"[0-9a-f]{64}", match[3])) for match in _LOCK_ENTRY.finditer(text)}


def list_components(inventory: Mapping[str, Any], lock: str) -> list[SbomComponent]:
    """List the image's components from its inventory. Raises KeyError if the inventory has another form."""
    hashes = parse_lock_hashes(lock)
    components = [
        SbomComponent(
            kind="python",
            name=package["name"],
            version=package["version"],
            purl=f"pkg:pypi/{quote(package['name'])}@{quote(package['version'])}",
            licence_expression=package["expression"],
            licence=package["licence"],
            supplier=package.get("supplier"),
            lock_hashes=hashes.get((package["name"], package["version"]), ()),
        )
        for package in inventory["python"]
    ]
    system, distribution = quote(str(inventory["system"])), inventory.get("distribution")
    distro = f"&distro={quote(str(distribution))}" if distribution else ""
    components += [
        SbomComponent(
            kind="debian",
            name=package["name"],
            version=package["version"],
            purl=f"pkg:deb/{system}/{quote(package['name'])}@{quote(package['version'])}"
            f"?arch={quote(package['architecture'])}{distro}",
            licence=package["licence"],
            supplier=package.get("supplier"),
        )
        for package in inventory["debian"]
    ]
    components += [
        SbomComponent(
            kind="model",
            name=model["name"],
            version=model["revision"] or model["manifest_sha256"],
            purl=f"pkg:huggingface/{quote(model['name'])}@{quote(model['revision'] or model['manifest_sha256'])}",
            supplier=model["name"].partition("/")[0] or None,
            files=tuple((file["path"], file["sha256"]) for file in model["files"]),
        )
        for model in inventory["models"]
    ]
    return components


def cyclonedx(subject: Subject, components: Sequence[SbomComponent]) -> dict[str, Any]:
    """Build the bill of materials in CycloneDX 1.6."""
    root = {
        "type": "container",
        "bom-ref": "image",
        "name": subject.repository,
        "version": subject.digest,
        "hashes": [{"alg": "SHA-256", "content": subject.sha256}],
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, subject.digest)}",
        "version": 1,
        "metadata": {
            "timestamp": subject.pushed_at,
            "tools": {"components": [{"type": "application", "name": TOOL}]},
            "component": root,
        },
        "components": [_cyclonedx_component(component) for component in components],
        "dependencies": [{"ref": "image", "dependsOn": [component.identifier for component in components]}],
    }


def _cyclonedx_component(component: SbomComponent) -> dict[str, Any]:
    document: dict[str, Any] = {
        "type": "machine-learning-model" if component.kind == "model" else "library",
        "bom-ref": component.identifier,
        "name": component.name,
        "version": component.version,
        "purl": component.purl,
    }
    if component.supplier:
        document["supplier"] = {"name": component.supplier}
    if component.licence_expression:
        document["licenses"] = [{"expression": component.licence_expression}]
    elif component.licence:
        document["licenses"] = [{"license": {"name": component.licence}}]
    if component.lock_hashes:
        hashes = [{"alg": "SHA-256", "content": sha256} for sha256 in component.lock_hashes]
        url = f"https://pypi.org/project/{quote(component.name)}/{quote(component.version)}/"
        document["externalReferences"] = [{"type": "distribution", "url": url, "hashes": hashes}]
    if component.files:
        document["components"] = [
            {"type": "file", "name": path, "hashes": [{"alg": "SHA-256", "content": sha256}]}
            for path, sha256 in component.files
        ]
    return document


def spdx(subject: Subject, components: Sequence[SbomComponent]) -> dict[str, Any]:
    """Build the bill of materials in SPDX 2.3."""
    image = {
        "SPDXID": "SPDXRef-image",
        "name": subject.repository,
        "versionInfo": subject.digest,
        "downloadLocation": _NO_ASSERTION,
        "filesAnalyzed": False,
        "primaryPackagePurpose": "CONTAINER",
        "checksums": [{"algorithm": "SHA256", "checksumValue": subject.sha256}],
        "licenseConcluded": _NO_ASSERTION,
        "licenseDeclared": _NO_ASSERTION,
        "copyrightText": _NO_ASSERTION,
    }
    packages = [_spdx_package(component) for component in components]
    relation = {"spdxElementId": "SPDXRef-image", "relationshipType": "CONTAINS"}
    described = {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES"}
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{subject.repository}@{subject.digest}",
        "documentNamespace": f"https://spdx.org/spdxdocs/{TOOL}-{subject.sha256}",
        "creationInfo": {"created": subject.pushed_at, "creators": [f"Tool: {TOOL}"]},
        "packages": [image, *packages],
        "relationships": [
            {**described, "relatedSpdxElement": "SPDXRef-image"},
            *({**relation, "relatedSpdxElement": package["SPDXID"]} for package in packages),
        ],
    }


def _spdx_package(component: SbomComponent) -> dict[str, Any]:
    is_expression_valid = _EXPRESSION.match(component.licence_expression or "") is not None
    package: dict[str, Any] = {
        "SPDXID": f"SPDXRef-{component.identifier}",
        "name": component.name,
        "versionInfo": component.version,
        "supplier": f"Organization: {component.supplier}" if component.supplier else _NO_ASSERTION,
        "downloadLocation": _NO_ASSERTION,
        "filesAnalyzed": False,
        "licenseConcluded": _NO_ASSERTION,
        "licenseDeclared": component.licence_expression if is_expression_valid else _NO_ASSERTION,
        "copyrightText": _NO_ASSERTION,
        "externalRefs": [
            {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": component.purl}
        ],
    }
    if not is_expression_valid and (component.licence_expression or component.licence):
        package["licenseComments"] = f"the package says: {component.licence_expression or component.licence}"
    hashes = [f"{path} {sha256}" for path, sha256 in component.files] or list(component.lock_hashes)
    if len(hashes) == 1 and component.lock_hashes:
        package["checksums"] = [{"algorithm": "SHA256", "checksumValue": component.lock_hashes[0]}]
    elif hashes:
        per_file, any_of = "files, each with its sha256", "installed from one of the files with these sha256"
        package["comment"] = f"{per_file if component.files else any_of}: {', '.join(hashes)}"
    return package


def provenance(subject: Subject, *, base_digest: str | None, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Build the provenance: an unsigned in-toto statement with SLSA's provenance predicate, version 1."""
    labels = subject.labels
    revision, base = (labels.get(f"org.opencontainers.image.{key}", "") for key in ("revision", "base.name"))
    commit, _, dirty = revision.partition("-")
    dependencies: list[dict[str, Any]] = [
        {"name": "lock", "digest": {"sha256": labels.get(f"{TOOL}.lock", "")}},
        {"name": "build", "digest": {"sha256": labels.get(f"{TOOL}.build", "")}},
    ]
    if base:
        dependencies.append({"name": base, **({"digest": {"sha256": base_digest}} if base_digest else {})})
    if commit:
        changed = {"annotations": {"changed": True}} if dirty else {}
        dependencies.append({"name": "source", "digest": {"gitCommit": commit}, **changed})
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": subject.repository, "digest": {"sha256": subject.sha256}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"urn:{TOOL}:image:1",
                "externalParameters": dict(parameters),
                "resolvedDependencies": dependencies,
            },
            "runDetails": {"builder": {"id": f"urn:{TOOL}:build-vm"}, "metadata": {"finishedOn": subject.pushed_at}},
        },
    }
