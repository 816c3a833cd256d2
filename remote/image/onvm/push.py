"""On the build VM: pushes an image. The registry's own answer counts, not the client's exit code.

A reply that is lost after the registry has everything looks like a failure, and a lost blob may look like success. So
the registry is asked what it has before anything is sent again, and at the end.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from remote.image.onvm.job import ATTEMPTS, Failed, Watcher, ask, follow, reason, retried

FIRST_WAIT_SEC = 2.0
ASK_SEC = 60.0
CERTIFICATES = Path("/etc/docker/certs.d")
MANIFESTS = (
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.index.v1+json",
)
PASSING = frozenset({429, 500, 502, 503, 504})


def act(watcher: Watcher, job: dict[str, Any]) -> dict[str, Any]:
    try:
        return push(watcher, job)
    finally:
        shutil.rmtree(job["login"], ignore_errors=True)


def push(watcher: Watcher, job: dict[str, Any]) -> dict[str, Any]:
    docker, environment = [*job["docker"], "--config", job["login"]], job["environment"]
    images = ask(docker, environment, "image", "inspect", job["image"])
    if images is None:
        raise Failed("failed", f"the engine has no image {job['image']}; `inv build` makes it")
    image = images[0]
    registry = Registry(job["host"], job["path"], login_of(job["login"], job["host"]))
    reference = f"{job['host']}/{job['path']}:{job['tag']}"
    there = patiently(watcher, registry, job["tag"])
    if not is_this(there, image["Id"]):
        code, lines = follow(watcher, [*docker, "tag", image["Id"], reference], environment)
        if code != 0:
            raise reason(lines, code)
        there = send(watcher, docker, environment, registry, reference, job["tag"], image["Id"])
        sent = True
    else:
        watcher.say(f"{reference} has this image already; nothing is sent", "push")
        sent = False
    assert there is not None  # noqa: S101 - for the type checker
    digest, manifest = there
    # By its digest: somebody may move the tag at any moment, and pods run the digest.
    if registry.manifest(digest) is None:
        raise Failed("transient", f"{reference}: the registry does not have {digest}, which it has just named")
    watcher.say(f"{reference}@{digest}: confirmed by the registry", "confirmed")
    return {
        "digest": digest,
        "size_bytes": image["Size"],
        "compressed_bytes": manifest["config"]["size"] + sum(layer["size"] for layer in manifest["layers"]),
        "labels": image["Config"].get("Labels") or {},
        "sent": sent,
    }


def send(
    watcher: Watcher,
    docker: list[str],
    environment: dict[str, str],
    registry: Registry,
    reference: str,
    tag: str,
    image_id: str,
) -> tuple[str, dict[str, Any]]:
    """Push until the registry has it; transient failures are tried again, ATTEMPTS times in all."""
    for attempt in range(1, ATTEMPTS + 1):
        code, lines = follow(watcher, [*docker, "push", reference], environment)
        failure = reason(lines, code) if code != 0 else None
        if failure is not None and failure.kind == "unauthorized":
            raise failure
        there = patiently(watcher, registry, tag)
        if is_this(there, image_id):
            if failure is not None:
                watcher.say(f"the client failed ({failure}), but the registry has all of it", "push")
            assert there is not None  # noqa: S101 - for the type checker
            return there
        if failure is None:
            raise Failed("refused", f"{reference} is another image now: somebody moved the tag while this was pushed")
        if failure.kind != "transient" or attempt == ATTEMPTS:
            raise failure
        watcher.say(f"attempt {attempt} of {ATTEMPTS}: {failure}; again", "push")
        time.sleep(FIRST_WAIT_SEC * 2 ** (attempt - 1))
    raise AssertionError("unreachable")


def is_this(there: tuple[str, dict[str, Any]] | None, image_id: str) -> bool:
    """An engine names an image by its config's digest, or by its manifest's where containerd keeps its images."""
    return there is not None and image_id in (there[0], there[1].get("config", {}).get("digest"))


def patiently(watcher: Watcher, registry: Registry, tag: str) -> tuple[str, dict[str, Any]] | None:
    """What the tag is in the registry; asked again while it does not answer."""
    return retried(watcher, lambda: registry.manifest(tag), FIRST_WAIT_SEC)


def login_of(folder: str, host: str) -> str | None:
    """`user:password` in base64, as the client keeps it."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        return str(json.loads(Path(folder, "config.json").read_text())["auths"][host]["auth"])
    return None


class Registry:
    """One repository over the distribution API (HTTP v2): reading manifests, with Basic or Bearer as it asks."""

    def __init__(self, host: str, path: str, login: str | None) -> None:
        # Like the engine: plain HTTP to this machine only.
        scheme = "http" if re.match(r"(localhost|127\.[\d.]+)(:|$)", host) else "https"
        self.base, self.host, self.path, self.login = f"{scheme}://{host}/v2", host, path, login
        self.bearer: str | None = None
        self.tls = ssl.create_default_context()
        for certificate in CERTIFICATES.joinpath(host).glob("*.crt"):
            self.tls.load_verify_locations(certificate)

    def manifest(self, name: str) -> tuple[str, dict[str, Any]] | None:
        """Digest and content of the manifest that a tag or digest names; None where there is none. Raises Failed."""
        answer = self._get(f"{self.base}/{self.path}/manifests/{name}", {"Accept": ", ".join(MANIFESTS)})
        if answer is None:
            return None
        return f"sha256:{hashlib.sha256(answer).hexdigest()}", json.loads(answer)

    def _get(self, url: str, headers: dict[str, str]) -> bytes | None:
        """The answer; None for 404."""
        for is_last in (False, True):
            authorization = f"Bearer {self.bearer}" if self.bearer else f"Basic {self.login}" if self.login else None
            more = {} if authorization is None else {"Authorization": authorization}
            try:
                return self._open(url, {**headers, **more})
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                challenge = error.headers.get("WWW-Authenticate", "")
                if error.code != 401 or is_last or not challenge.lower().startswith("bearer "):
                    kind = "unauthorized" if error.code in (401, 403) else "failed"
                    raise self._refused(error, kind, f"for {self.path}") from None
                self.bearer = self._token(challenge)
            except (OSError, ValueError) as error:
                raise _broken(error, self.host) from None
        raise AssertionError("unreachable")

    def _open(self, url: str, headers: dict[str, str]) -> bytes:
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - https, or this machine
        try:
            with urllib.request.urlopen(request, timeout=ASK_SEC, context=self.tls) as answer:  # noqa: S310 - as above
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as error:
            error.close()  # it holds the connection
            raise

    def _token(self, challenge: str) -> str:
        fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
        query = urllib.parse.urlencode(
            {"service": fields.get("service", ""), "scope": f"repository:{self.path}:pull,push"}
        )
        headers = {"Authorization": f"Basic {self.login}"} if self.login else {}
        realm = fields.get("realm", "")
        if not realm.startswith("https://") and not (realm and self.base.startswith("http://")):
            raise Failed("refused", f"{self.host} sends the login to {realm or 'nowhere'}, which is not https; refused")
        try:
            answer = json.loads(self._open(f"{realm}?{query}", headers))
            return str(answer.get("token") or answer["access_token"])
        except urllib.error.HTTPError as error:
            raise self._refused(error, "unauthorized", "to the login") from None
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise _broken(error, f"{realm}, which {self.host} names") from None

    def _refused(self, error: urllib.error.HTTPError, kind: str, what: str) -> Failed:
        kind = "transient" if error.code in PASSING else kind
        return Failed(kind, f"{self.host} answers {error.code} {error.reason} {what}")


def _broken(error: Exception, where: str) -> Failed:
    """A request without a readable answer: transient, unless the certificate is not trusted."""
    why = getattr(error, "reason", None) or error
    kind = "failed" if isinstance(why, ssl.SSLCertVerificationError) else "transient"
    return Failed(kind, f"{where}: {why if isinstance(why, OSError) else f'{type(error).__name__}: {why}'}")
