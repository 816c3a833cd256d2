"""`inv image.show`: an image as the registry has it: what it was built of, its documents, its signature."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from invoke.context import Context

from remote.image.references import Reference
from remote.image.sbom import bom, signature
from remote.image.vm_agent.registry.api import entries, fields, size_of
from tasks.clients import registry
from tasks.clients.build_vm import build_vm
from tasks.clients.image_ref import recorded
from tasks.clients.registry import address
from tasks.clients.secrets import registry_password
from tasks.errors import ConfirmationRequired, UsageError, one_line
from tasks.image.sbom.sign import verifying_key
from tasks.settings.load import Settings, load

LICENCES_SHOWN = 8
CREATED = "org.opencontainers.image.created"
Json = Mapping[str, Any]


def show_image(context: Context, digest: str | None) -> None:
    settings = load(context)
    where, user = address(settings)
    key = verifying_key(settings)
    name = digest or pushed_digest(settings, where) or where.tag
    if digest is not None and not digest.startswith("sha256:"):
        raise UsageError(f"image.show: --digest: expected sha256:..., found {digest!r}")
    secret = registry_password(settings, user, where.host, "inv image.show")
    with build_vm(settings, "inv image.show") as host:
        found = registry.ask(settings, host, where, (user, secret), {"do": "look", "name": name})
    wrong: list[str] = []
    for what, text in _lines(found, wrong):
        print(f"  {what:<12}{one_line(text)}")
    digest = str(found["digest"])
    if key is None:
        count = len(found["signatures"])
        print(f"  signature   {f'{count}, not verified: image.verify_key is not set' if count else 'none'}")
    elif signature.is_signed(key, where.repository, digest, found["signatures"]):
        print("  signature   good: by the key of image.verify_key")
    else:
        wrong.append(f"{len(found['signatures'])} signatures, none of them by the key of image.verify_key")
    if wrong:
        raise ConfirmationRequired(f"{where.repository}@{digest}: {'; '.join(map(one_line, wrong))}")


def pushed_digest(settings: Settings, where: Reference) -> str | None:
    """What `inv push` pushed to this repository from here, None where that is not known."""
    try:
        pushed = recorded(settings)
        return str(pushed["digest"]) if pushed["repository"] == where.repository else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _lines(found: Json, wrong: list[str]) -> Iterator[tuple[str, str]]:
    """Title and text of every line; what does not belong to this image is added to `wrong`."""
    digest, manifest = str(found["digest"]), found["manifest"]
    sizes = [size for layer in entries(manifest.get("layers")) if (size := size_of(layer)) is not None]
    yield "image", digest
    yield "registry", f"{sum(sizes) / 1e9:.2f} GB in {len(sizes)} layers"
    labels = fields(fields((_parsed(found["config"]) or {}).get("config")).get("Labels"))
    base, commit = (str(labels.get(f"org.opencontainers.image.{key}", "")) for key in ("base.name", "revision"))
    yield "base", base or "not said"
    yield "commit", commit or "not said"
    documents = sorted(found["documents"], key=lambda one: str(one["notes"].get(CREATED, "")))
    listed = f"{len(documents)}, by {found['lists']}; unsigned"
    yield "documents", listed if documents else "none; `inv image.bom --push` puts them there"
    newest = {document["kind"]: _parsed(document["text"]) for document in documents}
    for kind, read in ((bom.CYCLONEDX, _inside), (bom.SPDX, _spdx), (bom.PROVENANCE, _built)):
        if kind not in newest:
            continue
        try:
            yield from read(newest[kind] or {}, digest)
        except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
            said = str(error) if type(error) is ValueError else "cannot be read"
            wrong.append(f"the document of kind {kind} {said}")


def _inside(document: Json, digest: str) -> Iterator[tuple[str, str]]:
    _same(document["metadata"]["component"]["hashes"][0]["content"], digest)
    parts: dict[str, list[Json]] = {}
    for one in document["components"]:
        kind = "model" if one["type"] == "machine-learning-model" else str(one["purl"]).split(":")[1].split("/")[0]
        parts.setdefault(kind, []).append(one)
    packages = [*parts.get("pypi", []), *parts.get("deb", [])]
    yield "packages", f"{len(parts.get('pypi', []))} of Python, {len(parts.get('deb', []))} of Debian"
    licences = Counter(_licence(package) for package in packages)
    silent = licences.pop("", 0)
    shown = [f"{name} {count}" for name, count in licences.most_common(LICENCES_SHOWN)]
    more = [f"{len(licences) - len(shown)} others"] if len(licences) > len(shown) else []
    yield "licences", ", ".join([*shown, *more, *([f"{silent} packages name none"] if silent else [])]) or "none named"
    for one in parts.get("model", []):
        yield "model", f"{one['name']} {one['version']}, {len(one.get('components', []))} files with their sha256"


def _licence(one: Json) -> str:
    named = (one.get("licenses") or [{}])[0]
    return str(named.get("expression") or named.get("license", {}).get("name") or "")


def _spdx(document: Json, digest: str) -> Iterator[tuple[str, str]]:
    _same(document["packages"][0]["checksums"][0]["checksumValue"], digest)
    yield "SPDX", f"{len(document['packages']) - 1} packages"


def _built(statement: Json, digest: str) -> Iterator[tuple[str, str]]:
    _same(statement["subject"][0]["digest"]["sha256"], digest)
    about, run = statement["predicate"]["buildDefinition"], statement["predicate"]["runDetails"]
    given = ", ".join(f"{key} {value}" for key, value in about["externalParameters"].items())
    yield "provenance", f"by {run['builder']['id']}: {given}"
    for one in about["resolvedDependencies"]:
        kind, value = next(iter((one.get("digest") or {"digest": "not known"}).items()))
        changed = ", with changed files" if one.get("annotations", {}).get("changed") else ""
        yield "", f"{one['name']}: {kind} {value}{changed}"


def _same(sha256: object, digest: str) -> None:
    if sha256 != digest.removeprefix("sha256:"):
        raise ValueError("is about another image")


def _parsed(text: object) -> Json | None:
    try:
        found = json.loads(str(text))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
