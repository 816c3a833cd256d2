"""`inv image.show`: show a pushed image with its SBOM, provenance and signature from the registry."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from invoke.context import Context

from remote.agent.shared.registry.api import json_object, json_objects, size_of
from remote.image.references import Reference
from remote.image.sbom import bom, signature
from tasks.clients import registry
from tasks.clients.build_vm import build_vm
from tasks.clients.image_ref import read_push_record
from tasks.clients.registry import configured_image
from tasks.clients.secrets import registry_password
from tasks.errors import ConfirmationRequired, UsageError, escape_controls
from tasks.image.sbom.sign import verifying_key
from tasks.settings.load import Settings, load

MAX_LICENCES_SHOWN = 8
CREATED = "org.opencontainers.image.created"
Json = Mapping[str, Any]


def show_image(context: Context, digest: str | None) -> None:
    settings = load(context)
    reference, user = configured_image(settings)
    key = verifying_key(settings)
    name = digest or pushed_digest(settings, reference) or reference.tag
    if digest is not None and not digest.startswith("sha256:"):
        raise UsageError(f"image.show: --digest: expected sha256:..., found {digest!r}")
    secret = registry_password(settings, user, reference.host, "inv image.show")
    with build_vm(settings, "inv image.show") as host:
        image = registry.query(settings, host, reference, (user, secret), {"do": "look", "name": name})
    problems: list[str] = []
    for title, text in _lines(image, problems):
        print(f"  {title:<12}{escape_controls(text)}")
    digest = str(image["digest"])
    if key is None:
        count = len(image["signatures"])
        print(f"  signature   {f'{count}, not verified: image.verify_key is not set' if count else 'none'}")
    elif signature.is_signed(key, reference.repository, digest, image["signatures"]):
        print("  signature   valid for image.verify_key")
    else:
        problems.append(f"{len(image['signatures'])} signatures, but no valid one for image.verify_key")
    if problems:
        raise ConfirmationRequired(f"{reference.repository}@{digest}: {'; '.join(map(escape_controls, problems))}")


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
    yield "registry", f"{sum(sizes) / 1e9:.2f} GB in {len(sizes)} layers"
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
        document = json.loads(str(text))
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
