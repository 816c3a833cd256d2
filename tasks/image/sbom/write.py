"""`inv image.bom`: write the image's SBOM (CycloneDX, SPDX) and SLSA provenance to files.

`--push` also attaches them to the image in its registry.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from invoke.context import Context

from bench.records.atomic_files import write_atomic
from remote.hosts.bundle import read_source
from remote.image import docker_client as images
from remote.image import engine
from remote.image.docker_client import ContainerExit
from remote.image.references import Reference
from remote.image.sbom import bom
from remote.image.sbom.bom import SbomComponent, Subject
from tasks.clients import registry
from tasks.clients.build_vm import build_vm
from tasks.clients.image_ref import read_push_record
from tasks.clients.registry import configured_image
from tasks.clients.secrets import registry_password
from tasks.errors import TaskFailed, UsageError, escape_controls, file_errors, results_write_errors
from tasks.image import build_profiles
from tasks.image.build import engine_client
from tasks.settings.load import Settings, load

PROGRAM = "pip-audit"
REPORT_FILE = "vulnerabilities.json"
AUDIT_TIMEOUT_SEC = 600.0
MAX_SHOWN = 5
OFFLINE_HINT = "without access to PyPI use a scanner with its own database: grype sbom:bom.cdx.json"


def audit(lock: Path, folder: Path) -> list[str]:
    """Write vulnerabilities.json and return summary lines, or why they are unavailable. Raises OSError."""
    installed = Path(sys.executable).with_name(PROGRAM)
    program = str(installed) if installed.exists() else shutil.which(PROGRAM)
    if program is None:
        return [f"vulnerabilities: not checked; `pip install {PROGRAM}`, then retry `inv image.bom`; {OFFLINE_HINT}"]
    flags = ("--requirement", str(lock), "--require-hashes", "--disable-pip", "--format", "json")
    argv = (program, *flags, "--progress-spinner", "off")
    try:
        completed = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=AUDIT_TIMEOUT_SEC, check=False
        )
        packages = json.loads(completed.stdout)["dependencies"]
        lines = _summarise(packages)
    except subprocess.TimeoutExpired:
        return [f"vulnerabilities: {PROGRAM} was not done after {AUDIT_TIMEOUT_SEC:.0f} s; {OFFLINE_HINT}"]
    except (ValueError, KeyError, TypeError, AttributeError):
        last = " ".join(completed.stderr.split()[-20:]) or "no output"
        return [f"vulnerabilities: not known: {PROGRAM} exited with {completed.returncode}: {last}; {OFFLINE_HINT}"]
    write_atomic(folder / REPORT_FILE, completed.stdout.encode())
    return lines


def _summarise(packages: list[dict[str, Any]]) -> list[str]:
    affected = [package for package in packages if package.get("vulns")]
    skipped = sum("skip_reason" in package for package in packages)
    if skipped == len(packages):
        reason = str(packages[0]["skip_reason"]) if packages else "its list is empty"
        return [f"vulnerabilities: not known: {PROGRAM} skipped all {skipped} packages: {reason}; {OFFLINE_HINT}"]
    count = sum(len(package["vulns"]) for package in affected)
    unknown = f", {skipped} not known to it" if skipped else ""
    lines = [
        f"vulnerabilities: {count} known, of {len(affected)} among {len(packages)} packages{unknown}; {REPORT_FILE}"
    ]
    for package in affected[:MAX_SHOWN]:
        names = ", ".join(f"{bug['id']} ({_fix(bug)})" for bug in package["vulns"][:MAX_SHOWN])
        lines.append(f"  {package['name']} {package['version']}: {names}")
    return lines


def _fix(vulnerability: dict[str, Any]) -> str:
    versions = vulnerability.get("fix_versions") or []
    return f"fixed in {versions[0]}" if versions else "no fixed version yet"


INVENTORY_TIMEOUT_SEC = 300.0
TIMESTAMP_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
CREATED = "org.opencontainers.image.created"
FILE_TYPES = {"bom.cdx.json": bom.CYCLONEDX, "bom.spdx.json": bom.SPDX, "provenance.json": bom.PROVENANCE}
TYPE_FILES = {kind: file for file, kind in FILE_TYPES.items()}
EXTRA_NOTES = {bom.PROVENANCE: {"in-toto.io/predicate-type": "https://slsa.dev/provenance/v1"}}
_INVENTORY_COMMAND = ("python", "-I", "-c", read_source("remote.agent.scripts.inventory"))


def write_documents(context: Context, *, push: bool) -> None:
    settings = load(context)
    name = build_profiles.image_name(settings)
    reference, user = configured_image(settings) if push else (None, "")
    lock = settings.root / "image" / "locks" / f"{settings.image.profile}.txt"
    with build_vm(settings, "inv image.bom") as host:
        with images.connect(host, engine_client(settings)) as sdk:
            image = sdk.images.get(name)
            container = images.run_check(sdk, name, _INVENTORY_COMMAND, timeout_sec=INVENTORY_TIMEOUT_SEC)
        base_image = engine.inspect(
            host, engine_client(settings), image.labels.get("org.opencontainers.image.base.name", "none")
        )
    subject = _subject(settings, name, str(image.id), dict(image.labels))
    if reference is not None and subject.repository != reference.repository:
        raise UsageError(
            f"{name} was not pushed to {reference.repository} as it is now",
            remedy="`inv push`, then retry `inv image.bom --push`",
        )
    with file_errors(lock, "`inv image.lock` writes it"):
        locked = lock.read_text(encoding="utf-8")
    components, documents = _documents(name, subject, container, locked)
    parameters = {"profile": settings.image.profile, "target": settings.image.target, "image": name}
    documents["provenance.json"] = bom.provenance(subject, base_digest=_base_digest(base_image), parameters=parameters)
    texts = {file: json.dumps(document, indent=1) + "\n" for file, document in documents.items()}
    folder = settings.results_folder / "image"
    with results_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            write_atomic(folder / file, text.encode())
        audit_lines = audit(lock, folder)
    python, debian, models = (sum(part.kind == kind for part in components) for kind in ("python", "debian", "model"))
    print(f"{subject.repository}@{subject.digest}: {python} Python packages, {debian} Debian packages, {models} models")
    print(f"wrote {', '.join(documents)} to {folder}, unsigned")
    for line in audit_lines:
        print(escape_controls(line))
    if reference is not None:
        _push(settings, reference, user, subject, {FILE_TYPES[file]: text for file, text in texts.items()})


def _push(settings: Settings, reference: Reference, user: str, subject: Subject, texts: Mapping[str, str]) -> None:
    retry_command = "inv image.bom --push"
    documents = [
        {
            "kind": kind,
            "title": TYPE_FILES[kind],
            "text": text,
            "notes": {CREATED: subject.pushed_at, **EXTRA_NOTES.get(kind, {})},
        }
        for kind, text in texts.items()
    ]
    request = {"do": "attach", "subject": subject.digest, "documents": documents}
    secret = registry_password(settings, user, reference.host, retry_command)
    with build_vm(settings, retry_command) as host:
        answer = registry.query(settings, host, reference, (user, secret), request)
    count = len(answer["digests"])
    print(f"attached {count} documents to {reference.repository}@{subject.digest}, listed by {answer['lists']}")


def _documents(
    name: str, subject: Subject, container: ContainerExit, lock: str
) -> tuple[list[SbomComponent], dict[str, Any]]:
    """Parse the image's inventory and build its SBOM documents. Raises TaskFailed."""
    try:
        components = bom.list_components(json.loads(container.stdout.splitlines()[-1]), lock)
        return components, {
            "bom.cdx.json": bom.cyclonedx(subject, components),
            "bom.spdx.json": bom.spdx(subject, components),
        }
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        last = " ".join(container.stderr[-500:].split()[-30:])
        raise TaskFailed(
            f"{name}: its inventory cannot be read: {last or 'a package or model has no name or version'}"
        ) from error


def _subject(settings: Settings, name: str, image_id: str, labels: Mapping[str, str]) -> Subject:
    """Identify the image by its pushed digest, or by the engine's own image id if it was not pushed from here."""
    try:
        pushed = read_push_record(settings)
        if pushed["labels"] == labels:
            # Use the time of the push, so that the documents of an image are reproducible.
            timestamp = datetime.fromisoformat(pushed["pushed_at"]).astimezone(timezone.utc).strftime(TIMESTAMP_FORMAT)
            return Subject(repository=pushed["repository"], digest=pushed["digest"], pushed_at=timestamp, labels=labels)
    except (OSError, ValueError, KeyError, TypeError):
        pass  # never pushed from here
    print(f"{name} was not pushed as it is now: the documents name the engine's image id; rerun this after `inv push`")
    timestamp = datetime.now(timezone.utc).strftime(TIMESTAMP_FORMAT)
    return Subject(repository=name.partition(":")[0], digest=image_id, pushed_at=timestamp, labels=labels)


def _base_digest(base_image: Mapping[str, Any] | None) -> str | None:
    """Return the base image's registry digest, or None if the engine did not pull it from a registry."""
    digests = [str(digest) for digest in (base_image or {}).get("RepoDigests") or []]
    return digests[0].rpartition("sha256:")[2] if digests else None
