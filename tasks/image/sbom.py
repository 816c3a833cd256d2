"""`inv image.bom` and `image.show`: bill of materials (CycloneDX, SPDX), SLSA provenance and signature of an image.

`image.bom` writes the documents to files, and with `--push` attaches them to the image in its registry. `image.show`
reads them from there. `inv push` signs the image with the key of image.sign_key.
"""

import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from invoke.context import Context

from bench.records import schema
from bench.records.atomic_files import write_atomic
from bench.records.units import format_gb
from remote.agent.shared.registry_api import json_object, json_objects, size_of
from remote.hosts.base import CommandTimedOut, Completed, Host
from remote.hosts.bundle import read_source
from remote.hosts.command import Secret
from remote.hosts.process import run_program
from remote.image import artifact, bom, engine
from remote.image.artifact import InvalidKey, NeedsPassPhrase
from remote.image.bom import SbomComponent, Subject
from remote.image.references import Reference
from tasks.cli.answer import Answer, plan_answer
from tasks.cli.flags import format_command
from tasks.clients import registry, secrets
from tasks.clients.build_vm import build_vm
from tasks.clients.prompt import prompt_hidden
from tasks.clients.registry import configured_image, read_push_record
from tasks.clients.secrets import registry_password
from tasks.errors import (
    ConfirmationRequired,
    TaskFailed,
    UsageError,
    escape_controls,
    file_errors,
    results_write_errors,
    translate_errors,
)
from tasks.image import build_profiles
from tasks.image.build import engine_client, image_labels, image_record
from tasks.settings.load import Settings, load

PROGRAM = "pip-audit"
REPORT_FILE = "vulnerabilities.json"
AUDIT_TIMEOUT_SEC, INVENTORY_TIMEOUT_SEC = 600.0, 300.0
MAX_SHOWN, MAX_LICENCES_SHOWN = 5, 8
OFFLINE_HINT = "without access to PyPI use a scanner with its own database: grype sbom:bom.cdx.json"
TIMESTAMP_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
CREATED = "org.opencontainers.image.created"
FILE_TYPES = {"bom.cdx.json": bom.CYCLONEDX, "bom.spdx.json": bom.SPDX, "provenance.json": bom.PROVENANCE}
TYPE_FILES = {kind: file for file, kind in FILE_TYPES.items()}
EXTRA_NOTES = {bom.PROVENANCE: {"in-toto.io/predicate-type": "https://slsa.dev/provenance/v1"}}
_INVENTORY_COMMAND = ("python", "-I", "-c", read_source("remote.agent.scripts.inventory"))
Json = Mapping[str, Any]


def write_documents(context: Context, *, push: bool, dry_run: bool = False) -> Answer | None:
    settings = load(context)
    name = build_profiles.image_name(settings)
    reference, user = configured_image(settings) if push else (None, "")
    lock = settings.root / "image" / "locks" / f"{settings.image.profile}.txt"
    client = engine_client(settings)
    with build_vm(settings, format_command("image.bom", push=push, dry_run=dry_run)) as host:
        image = image_record(settings, host)
        if dry_run:
            folder, target = settings.results_folder / "image", None if reference is None else reference.repository
            lines = [f"write  {folder / file}" for file in FILE_TYPES]
            lines += [] if target is None else [f"attach  {len(FILE_TYPES)} documents to {target}"]
            return plan_answer(lines, image=name, image_id=image["Id"], files=list(FILE_TYPES), repository=target)
        labels = image_labels(image)
        inventory = engine.run_check(host, client, image["Id"], _INVENTORY_COMMAND, timeout_sec=INVENTORY_TIMEOUT_SEC)
        base_image = engine.inspect(host, client, labels.get("org.opencontainers.image.base.name", "none"))
    subject = _subject(settings, name, image["Id"], labels)
    if reference is not None and subject.repository != reference.repository:
        raise UsageError(
            f"{name} was not pushed to {reference.repository} as it is now",
            remedy="`inv push`, then retry `inv image.bom --push`",
        )
    with file_errors(lock, "`inv image.lock` writes it"):
        locked = lock.read_text(encoding="utf-8")
    components, documents = _documents(name, subject, inventory, locked)
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
    return None


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
    name: str, subject: Subject, inventory: Completed, lock: str
) -> tuple[list[SbomComponent], dict[str, Any]]:
    """Parse the image's inventory and build its SBOM documents. Raises TaskFailed."""
    try:
        components = bom.list_components(schema.parse(inventory.stdout.splitlines()[-1]), lock)
        return components, {
            "bom.cdx.json": bom.cyclonedx(subject, components),
            "bom.spdx.json": bom.spdx(subject, components),
        }
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        last = " ".join(inventory.stderr[-500:].decode(errors="replace").split()[-30:])
        raise TaskFailed(
            f"{name}: its inventory cannot be read: {last or 'a package or model has no name or version'}"
        ) from error


def _subject(settings: Settings, name: str, image_id: str, labels: Mapping[str, str]) -> Subject:
    """Identify the image by its pushed digest, or by the engine's own image id if it was not pushed from here."""
    try:
        pushed = read_push_record(settings)
        # A rebuilt image has the same labels, and may have newer Debian packages.
        if pushed["labels"] == labels and pushed.get("image_id") in (None, image_id):
            # Use the time of the push, so that the documents of an image are reproducible.
            timestamp = datetime.fromisoformat(pushed["pushed_at"]).astimezone(UTC).strftime(TIMESTAMP_FORMAT)
            return Subject(repository=pushed["repository"], digest=pushed["digest"], pushed_at=timestamp, labels=labels)
    except (OSError, ValueError, KeyError, TypeError):
        pass  # never pushed from here
    print(f"{name} was not pushed as it is now: the documents name the engine's image id; rerun this after `inv push`")
    timestamp = datetime.now(UTC).strftime(TIMESTAMP_FORMAT)
    return Subject(repository=name.partition(":")[0], digest=image_id, pushed_at=timestamp, labels=labels)


def _base_digest(base_image: Mapping[str, Any] | None) -> str | None:
    """Return the base image's registry digest, or None if the engine did not pull it from a registry."""
    digests = [str(digest) for digest in (base_image or {}).get("RepoDigests") or []]
    return digests[0].rpartition("sha256:")[2] if digests else None


# --- known vulnerabilities --------------------------------------------------------------------------------------------


def audit(lock: Path, folder: Path) -> list[str]:
    """Write vulnerabilities.json and return summary lines, or why they are unavailable. Raises OSError."""
    installed = Path(sys.executable).with_name(PROGRAM)
    program = str(installed) if installed.exists() else shutil.which(PROGRAM)
    if program is None:
        return [f"vulnerabilities: not checked; `pip install {PROGRAM}`, then retry `inv image.bom`; {OFFLINE_HINT}"]
    flags = ("--requirement", str(lock), "--require-hashes", "--disable-pip", "--format", "json")
    argv = (program, *flags, "--progress-spinner", "off")
    try:
        completed = run_program(argv, label=PROGRAM, timeout_sec=AUDIT_TIMEOUT_SEC)
        packages = schema.parse_object(completed.stdout)["dependencies"]
        lines = _summarise(packages)
    except CommandTimedOut:
        return [f"vulnerabilities: {PROGRAM} was not done after {AUDIT_TIMEOUT_SEC:.0f} s; {OFFLINE_HINT}"]
    except (ValueError, KeyError, TypeError, AttributeError):
        last = " ".join(completed.stderr.decode(errors="replace").split()[-20:]) or "no output"
        return [f"vulnerabilities: not known: {PROGRAM} exited with {completed.exit_code}: {last}; {OFFLINE_HINT}"]
    write_atomic(folder / REPORT_FILE, completed.stdout)
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


# --- a pushed image ---------------------------------------------------------------------------------------------------


def show_image(context: Context, digest: str | None) -> Answer:
    settings = load(context)
    reference, user = configured_image(settings)
    key = verifying_key(settings)
    name = digest or pushed_digest(settings, reference) or reference.tag
    if digest is not None and not digest.startswith("sha256:"):
        raise UsageError(f"image.show: --digest: expected sha256:..., found {digest!r}")
    retry_command = format_command("image.show", digest=digest)
    secret = registry_password(settings, user, reference.host, retry_command)
    with build_vm(settings, retry_command) as host:
        image = registry.query(settings, host, reference, (user, secret), {"do": "look", "name": name})
    problems: list[str] = []
    rows = list(_lines(image, problems))
    digest, count = str(image["digest"]), len(image["signatures"])
    if key is None:
        rows.append(("signature", f"{count}, not verified: image.verify_key is not set" if count else "none"))
    elif artifact.is_signed(key, reference.repository, digest, image["signatures"]):
        rows.append(("signature", "valid for image.verify_key"))
    else:
        problems.append(f"{count} signatures, but no valid one for image.verify_key")
    problem = f"{reference.repository}@{digest}: {'; '.join(map(escape_controls, problems))}"
    return Answer(
        data={"repository": reference.repository, "digest": digest, "rows": rows},
        show=lambda: print(*(f"  {title:<12}{escape_controls(text)}" for title, text in rows), sep="\n"),
        failure=ConfirmationRequired(problem) if problems else None,
    )


def pushed_digest(settings: Settings, reference: Reference) -> str | None:
    """Return the digest that `inv push` recorded for this repository, or None."""
    try:
        pushed = read_push_record(settings)
        return str(pushed["digest"]) if pushed["repository"] == reference.repository else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _lines(image: Json, problems: list[str]) -> Iterator[tuple[str, str]]:
    """Yield title and text of every line; append documents that do not describe this image to `problems`."""
    digest, manifest = str(image["digest"]), image["manifest"]
    sizes = [size for layer in json_objects(manifest.get("layers")) if (size := size_of(layer)) is not None]
    yield "image", digest
    yield "registry", f"{format_gb(sum(sizes), 2)} in {len(sizes)} layers"
    labels = json_object(json_object((_parse_object(image["config"]) or {}).get("config")).get("Labels"))
    base, commit = (str(labels.get(f"org.opencontainers.image.{key}", "")) for key in ("base.name", "revision"))
    yield "base", base or "unknown"
    yield "commit", commit or "unknown"
    documents = sorted(image["documents"], key=lambda document: str(document["notes"].get(CREATED, "")))
    count = f"{len(documents)}, listed by {image['lists']}; unsigned"
    yield "documents", count if documents else "none; `inv image.bom --push` attaches them"
    newest = {document["kind"]: _parse_object(document["text"]) for document in documents}
    for kind, read in ((bom.CYCLONEDX, _cyclonedx_lines), (bom.SPDX, _spdx_lines), (bom.PROVENANCE, _provenance_lines)):
        if kind not in newest:
            continue
        try:
            yield from read(newest[kind] or {}, digest)
        except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
            problem = str(error) if type(error) is ValueError else "cannot be read"
            problems.append(f"document {kind}: {problem}")


def _cyclonedx_lines(document: Json, digest: str) -> Iterator[tuple[str, str]]:
    _check_subject(document["metadata"]["component"]["hashes"][0]["content"], digest)
    components: dict[str, list[Json]] = {}
    for component in document["components"]:
        is_model = component["type"] == "machine-learning-model"
        kind = "model" if is_model else str(component["purl"]).split(":")[1].split("/")[0]
        components.setdefault(kind, []).append(component)
    packages = [*components.get("pypi", []), *components.get("deb", [])]
    yield "packages", f"{len(components.get('pypi', []))} Python, {len(components.get('deb', []))} Debian"
    licences = Counter(_licence(package) for package in packages)
    unlicensed = licences.pop("", 0)
    shown = [f"{name} {count}" for name, count in licences.most_common(MAX_LICENCES_SHOWN)]
    more = [f"{len(licences) - len(shown)} others"] if len(licences) > len(shown) else []
    without = [f"{unlicensed} packages without one"] if unlicensed else []
    yield "licences", ", ".join([*shown, *more, *without]) or "none listed"
    for model in components.get("model", []):
        yield "model", f"{model['name']} {model['version']}, {len(model.get('components', []))} files with sha256"


def _licence(component: Json) -> str:
    licence = (component.get("licenses") or [{}])[0]
    return str(licence.get("expression") or licence.get("license", {}).get("name") or "")


def _spdx_lines(document: Json, digest: str) -> Iterator[tuple[str, str]]:
    _check_subject(document["packages"][0]["checksums"][0]["checksumValue"], digest)
    yield "SPDX", f"{len(document['packages']) - 1} packages"


def _provenance_lines(statement: Json, digest: str) -> Iterator[tuple[str, str]]:
    _check_subject(statement["subject"][0]["digest"]["sha256"], digest)
    definition, run = statement["predicate"]["buildDefinition"], statement["predicate"]["runDetails"]
    parameters = ", ".join(f"{key} {value}" for key, value in definition["externalParameters"].items())
    yield "provenance", f"by {run['builder']['id']}: {parameters}"
    for dependency in definition["resolvedDependencies"]:
        kind, value = next(iter((dependency.get("digest") or {"digest": "not known"}).items()))
        changed = ", with changed files" if dependency.get("annotations", {}).get("changed") else ""
        yield "", f"{dependency['name']}: {kind} {value}{changed}"


def _check_subject(sha256: object, digest: str) -> None:
    if sha256 != digest.removeprefix("sha256:"):
        raise ValueError("describes another image")


def _parse_object(text: object) -> Json | None:
    try:
        return schema.parse_object(str(text))
    except ValueError:
        return None


# --- signatures -------------------------------------------------------------------------------------------------------


def signing_key(settings: Settings) -> EllipticCurvePrivateKey | None:
    """Load the key of image.sign_key; None if it is not set. Raises UsageError."""
    name = settings.image.sign_key
    if name is None:
        return None
    pem = secrets.read_secret(settings, "image.sign_key", name).reveal()
    with translate_errors(UsageError, InvalidKey, prefix=f"image.sign_key: {name}: "):
        try:
            return artifact.load_private_key(pem, None)
        except NeedsPassPhrase:
            return artifact.load_private_key(pem, _pass_phrase(settings, name))


def verifying_key(settings: Settings) -> EllipticCurvePublicKey | None:
    """Load the key of image.verify_key; None if it is not set. Raises UsageError."""
    name = settings.image.verify_key
    if name is None:
        return None
    pem = secrets.read_secret_text(settings, "image.verify_key", name)
    with translate_errors(UsageError, InvalidKey, prefix=f"image.verify_key: {settings.resolve_path(name)}: "):
        return artifact.load_public_key(pem)


def sign(
    settings: Settings,
    host: Host,
    reference: Reference,
    digest: str,
    login: tuple[str, Secret],
    key: EllipticCurvePrivateKey,
) -> None:
    """Sign the pushed digest unless this key has signed it already. Raises HostError."""
    image = registry.query(settings, host, reference, login, {"do": "look", "name": digest})
    if artifact.is_signed(key.public_key(), reference.repository, digest, image["signatures"]):
        print("already signed with image.sign_key")
        return
    text = artifact.build_payload(reference.repository, digest)
    request = {"do": "sign", "subject": digest, "payload": text, "signature": artifact.sign(key, text)}
    tag = registry.query(settings, host, reference, login, request)["tag"]
    print(f"signed with image.sign_key: {reference.repository}:{tag}")


def _pass_phrase(settings: Settings, key: str) -> Secret:
    name = settings.image.sign_password_file
    if name is not None:
        return secrets.read_secret(settings, "image.sign_password_file", name)
    text = prompt_hidden(f"pass phrase of {key}: ")
    if not text:
        raise UsageError(
            f"image.sign_key: {key}: needs a pass phrase, and there is no terminal to enter it",
            remedy="set image.sign_password_file to a file that only you can read",
        )
    return Secret(text)
