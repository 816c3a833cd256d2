"""`inv image.bom`: what the image is made of and how it was built, as files that others' tools read.

With `--push` they are put beside the image in its registry, too.
"""

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from invoke.context import Context

from bench.records.atomic_files import write_atomic
from remote.hosts.bundle import source
from remote.image import docker_client as images
from remote.image import engine
from remote.image.docker_client import ContainerExit
from remote.image.references import Reference
from remote.image.sbom import bom
from remote.image.sbom.bom import SbomComponent, Subject
from tasks.clients import registry
from tasks.clients.build_vm import build_vm
from tasks.clients.image_ref import recorded
from tasks.clients.registry import address
from tasks.clients.secrets import registry_password
from tasks.errors import TaskFailed, UsageError, file_errors, one_line, writing
from tasks.image import build_profiles
from tasks.image.build import client
from tasks.image.sbom.audit import audit
from tasks.settings.load import Settings, load

LOOK_SEC = 300.0
MOMENT = "%Y-%m-%dT%H:%M:%SZ"
CREATED = "org.opencontainers.image.created"
KINDS = {"bom.cdx.json": bom.CYCLONEDX, "bom.spdx.json": bom.SPDX, "provenance.json": bom.PROVENANCE}
TITLES = {kind: file for file, kind in KINDS.items()}
NOTES = {bom.PROVENANCE: {"in-toto.io/predicate-type": "https://slsa.dev/provenance/v1"}}
_LOOK = ("python", "-I", "-c", source("remote.image.vm_agent.scripts.inventory"))


def write_documents(context: Context, *, push: bool) -> None:
    settings = load(context)
    name = build_profiles.image_name(settings)
    where, user = address(settings) if push else (None, "")
    lock = settings.root / "image" / "locks" / f"{settings.image.profile}.txt"
    with build_vm(settings, "inv image.bom") as host:
        with images.connected(host, client(settings)) as sdk:
            image = sdk.images.get(name)
            ended = images.run_check(sdk, name, _LOOK, timeout_sec=LOOK_SEC)
        base = engine.inspect(host, client(settings), image.labels.get("org.opencontainers.image.base.name", "none"))
    about = _subject(settings, name, str(image.id), dict(image.labels))
    if where is not None and about.repository != where.repository:
        raise UsageError(f"{name} was not pushed to {where.repository} as it is now; `inv push`, then the same again")
    with file_errors(lock, "; `inv image.lock` makes it"):
        locked = lock.read_text(encoding="utf-8")
    inside, documents = _documents(name, about, ended, locked)
    how = {"profile": settings.image.profile, "target": settings.image.target, "image": name}
    documents["provenance.json"] = bom.provenance(about, base_digest=_digest_of(base), parameters=how)
    texts = {file: json.dumps(document, indent=1) + "\n" for file, document in documents.items()}
    folder = settings.results_folder / "image"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            write_atomic(folder / file, text.encode())
        found = audit(lock, folder)
    kinds = [sum(one.kind == kind for one in inside) for kind in ("python", "debian", "model")]
    print(
        f"{about.repository}@{about.digest}: {kinds[0]} Python packages, {kinds[1]} Debian packages, {kinds[2]} models"
    )
    print(f"wrote {', '.join(documents)} to {folder}; none of them is signed")
    for line in found:
        print(one_line(line))
    if where is not None:
        _push(settings, where, user, about, {KINDS[file]: text for file, text in texts.items()})


def _push(settings: Settings, where: Reference, user: str, about: Subject, texts: Mapping[str, str]) -> None:
    again = "inv image.bom --push"
    documents = [
        {"kind": kind, "title": TITLES[kind], "text": text, "notes": {CREATED: about.moment, **NOTES.get(kind, {})}}
        for kind, text in texts.items()
    ]
    what = {"do": "attach", "subject": about.digest, "documents": documents}
    secret = registry_password(settings, user, where.host, again)
    with build_vm(settings, again) as host:
        answer = registry.ask(settings, host, where, (user, secret), what)
    print(f"beside {where.repository}@{about.digest}: {len(answer['digests'])} documents, by {answer['lists']}")


def _documents(
    name: str, about: Subject, ended: ContainerExit, lock: str
) -> tuple[list[SbomComponent], dict[str, Any]]:
    """What the image says it holds, and the documents of it. Raises TaskFailed."""
    try:
        inside = bom.parts(json.loads(ended.stdout.splitlines()[-1]), lock)
        return inside, {"bom.cdx.json": bom.cyclonedx(about, inside), "bom.spdx.json": bom.spdx(about, inside)}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        last = " ".join(ended.stderr[-500:].split()[-30:])
        raise TaskFailed(
            f"{name}: what it holds could not be read: {last or 'a package or model in it has no name or version'}"
        ) from None


def _subject(settings: Settings, name: str, image_id: str, labels: Mapping[str, str]) -> Subject:
    """The image by the digest under which it was pushed; before that by the engine's own, which is another."""
    try:
        pushed = recorded(settings)
        if pushed["labels"] == labels:
            # The moment of the push, so that the same image has the same documents.
            moment = datetime.fromisoformat(pushed["pushed_at"]).astimezone(timezone.utc).strftime(MOMENT)
            return Subject(repository=pushed["repository"], digest=pushed["digest"], moment=moment, labels=labels)
    except (OSError, ValueError, KeyError, TypeError):
        pass  # never pushed from here
    print(f"{name} was not pushed as it is now: the documents name the engine's own id; type the same after `inv push`")
    moment = datetime.now(timezone.utc).strftime(MOMENT)
    return Subject(repository=name.partition(":")[0], digest=image_id, moment=moment, labels=labels)


def _digest_of(base: Mapping[str, Any] | None) -> str | None:
    """The base image's digest in its registry, where the engine pulled it from one."""
    digests = [str(one) for one in (base or {}).get("RepoDigests") or []]
    return digests[0].rpartition("sha256:")[2] if digests else None
