"""What an image is made of, for others' tools: CycloneDX 1.6, SPDX 2.3, and an in-toto statement of how it was built.

Pure: from what the image holds (`remote.image.vm_agent.scripts.inventory`), the lock, and the image's labels to documents.
The lock's hashes are those of every file that the index has for a version; which of them was installed is not known, so
that they stand with the place it came from. The statement is not signed: it says what `inv build` did, and proves
nothing to somebody who does not trust the registry. Not covered: files that no package owns.
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
_NO = "NOASSERTION"
_EXPRESSION = re.compile(r"[A-Za-z0-9.+-]+(?: (?:AND|OR|WITH) [A-Za-z0-9.+-]+)*\Z")
_LOCKED = re.compile(
    r"^([a-z0-9][a-z0-9._-]*)==([^\s\\;]+)[^\n]*\\?((?:\n    --hash=sha256:[0-9a-f]{64} ?\\?)*)", re.MULTILINE
)
TOOL = "qlora-fleet"


@dataclass(frozen=True, kw_only=True)
class SbomComponent:
    """One thing inside: kind is python, debian or model. `files` are a model's, `sources` the lock's sha256."""

    kind: str
    name: str
    version: str
    purl: str
    expression: str | None = None
    licence: str | None = None
    sources: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()

    @property
    def reference(self) -> str:
        """Readable in the characters that SPDX allows, and unique by a digest of the purl."""
        readable = re.sub(r"[^A-Za-z0-9.-]", "-", f"{self.name}-{self.version}")
        return f"{self.kind}-{readable}-{hashlib.sha256(self.purl.encode()).hexdigest()[:8]}"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The image that the documents are about: repository, digest (sha256:...), when it was pushed, its labels."""

    repository: str
    digest: str
    moment: str
    labels: Mapping[str, str]

    @property
    def sha256(self) -> str:
        return self.digest.removeprefix("sha256:")


def locked(text: str) -> dict[str, tuple[str, ...]]:
    """Name to the sha256 of every file that the lock allows."""
    return {match[1]: tuple(re.findall(r"[0-9a-f]{64}", match[3])) for match in _LOCKED.finditer(text)}


def parts(contents: Mapping[str, Any], lock: str) -> list[SbomComponent]:
    """Everything that the image holds. Raises KeyError for contents of another form."""
    hashes = locked(lock)
    found = [
        SbomComponent(
            kind="python",
            name=one["name"],
            version=one["version"],
            purl=f"pkg:pypi/{quote(one['name'])}@{quote(one['version'])}",
            expression=one["expression"],
            licence=one["licence"],
            sources=hashes.get(one["name"], ()),
        )
        for one in contents["python"]
    ]
    system = quote(str(contents["system"]))
    found += [
        SbomComponent(
            kind="debian",
            name=one["name"],
            version=one["version"],
            purl=f"pkg:deb/{system}/{quote(one['name'])}@{quote(one['version'])}?arch={quote(one['architecture'])}",
            licence=one["licence"],
        )
        for one in contents["debian"]
    ]
    found += [
        SbomComponent(
            kind="model",
            name=one["name"],
            version=one["revision"] or one["manifest_sha256"],
            purl=f"pkg:huggingface/{quote(one['name'])}@{quote(one['revision'] or one['manifest_sha256'])}",
            files=tuple((file["path"], file["sha256"]) for file in one["files"]),
        )
        for one in contents["models"]
    ]
    return found


def cyclonedx(about: Subject, inside: Sequence[SbomComponent]) -> dict[str, Any]:
    """A bill of materials, CycloneDX 1.6."""
    root = {
        "type": "container",
        "bom-ref": "image",
        "name": about.repository,
        "version": about.digest,
        "hashes": [{"alg": "SHA-256", "content": about.sha256}],
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, about.digest)}",
        "version": 1,
        "metadata": {
            "timestamp": about.moment,
            "tools": {"components": [{"type": "application", "name": TOOL}]},
            "component": root,
        },
        "components": [_component(one) for one in inside],
        "dependencies": [{"ref": "image", "dependsOn": [one.reference for one in inside]}],
    }


def _component(one: SbomComponent) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": "machine-learning-model" if one.kind == "model" else "library",
        "bom-ref": one.reference,
        "name": one.name,
        "version": one.version,
        "purl": one.purl,
    }
    if one.expression:
        made["licenses"] = [{"expression": one.expression}]
    elif one.licence:
        made["licenses"] = [{"license": {"name": one.licence}}]
    if one.sources:
        hashes = [{"alg": "SHA-256", "content": sha256} for sha256 in one.sources]
        url = f"https://pypi.org/project/{quote(one.name)}/{quote(one.version)}/"
        made["externalReferences"] = [{"type": "distribution", "url": url, "hashes": hashes}]
    if one.files:
        made["components"] = [
            {"type": "file", "name": path, "hashes": [{"alg": "SHA-256", "content": sha256}]}
            for path, sha256 in one.files
        ]
    return made


def spdx(about: Subject, inside: Sequence[SbomComponent]) -> dict[str, Any]:
    """The same as SPDX 2.3."""
    image = {
        "SPDXID": "SPDXRef-image",
        "name": about.repository,
        "versionInfo": about.digest,
        "downloadLocation": _NO,
        "filesAnalyzed": False,
        "primaryPackagePurpose": "CONTAINER",
        "checksums": [{"algorithm": "SHA256", "checksumValue": about.sha256}],
        "licenseConcluded": _NO,
        "licenseDeclared": _NO,
        "copyrightText": _NO,
    }
    packages = [_package(one) for one in inside]
    relation = {"spdxElementId": "SPDXRef-image", "relationshipType": "CONTAINS"}
    described = {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES"}
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{about.repository}@{about.digest}",
        "documentNamespace": f"https://spdx.org/spdxdocs/{TOOL}-{about.sha256}",
        "creationInfo": {"created": about.moment, "creators": [f"Tool: {TOOL}"]},
        "packages": [image, *packages],
        "relationships": [
            {**described, "relatedSpdxElement": "SPDXRef-image"},
            *({**relation, "relatedSpdxElement": package["SPDXID"]} for package in packages),
        ],
    }


def _package(one: SbomComponent) -> dict[str, Any]:
    fits = one.expression is not None and _EXPRESSION.match(one.expression) is not None
    made: dict[str, Any] = {
        "SPDXID": f"SPDXRef-{one.reference}",
        "name": one.name,
        "versionInfo": one.version,
        "downloadLocation": _NO,
        "filesAnalyzed": False,
        "licenseConcluded": _NO,
        "licenseDeclared": one.expression if fits else _NO,
        "copyrightText": _NO,
        "externalRefs": [
            {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": one.purl}
        ],
    }
    if not fits and (one.expression or one.licence):
        made["licenseComments"] = f"the package says: {one.expression or one.licence}"
    listed = [f"{path} {sha256}" for path, sha256 in one.files] or list(one.sources)
    if len(listed) == 1 and one.sources:
        made["checksums"] = [{"algorithm": "SHA256", "checksumValue": one.sources[0]}]
    elif listed:
        what = "files, each with its sha256" if one.files else "installed from one of the files with these sha256"
        made["comment"] = f"{what}: {', '.join(listed)}"
    return made


def provenance(about: Subject, *, base_digest: str | None, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """How the image was built: an in-toto statement with SLSA's provenance predicate, version 1. Not signed."""
    labels = about.labels
    revision, base = (labels.get(f"org.opencontainers.image.{key}", "") for key in ("revision", "base.name"))
    commit, _, dirty = revision.partition("-")
    sources: list[dict[str, Any]] = [
        {"name": "lock", "digest": {"sha256": labels.get(f"{TOOL}.lock", "")}},
        {"name": "build", "digest": {"sha256": labels.get(f"{TOOL}.build", "")}},
    ]
    if base:
        sources.append({"name": base, **({"digest": {"sha256": base_digest}} if base_digest else {})})
    if commit:
        changed = {"annotations": {"changed": True}} if dirty else {}
        sources.append({"name": "source", "digest": {"gitCommit": commit}, **changed})
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": about.repository, "digest": {"sha256": about.sha256}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"urn:{TOOL}:image:1",
                "externalParameters": dict(parameters),
                "resolvedDependencies": sources,
            },
            "runDetails": {"builder": {"id": f"urn:{TOOL}:build-vm"}, "metadata": {"finishedOn": about.moment}},
        },
    }
