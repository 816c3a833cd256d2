"""Fake Oracle Cloud for tests: an HTTP server in a thread for the real SDK, with configurable faults.

    with FakeTenancy(ApiKey()) as tenancy:
        tenancy.keys.write_config(home)      # ~/.oci/config with a key of this run
        clients.ENDPOINT = tenancy.url       # for every service

Lists have pages of PAGE_SIZE. `fail` adds faults. Not covered: the signatures of requests, which are the SDK's (but for
a cluster's token, see `token_error`), validation by the services, eventual consistency, permissions (a fault instead).
"""

import base64
import datetime
import email.utils
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.support.machines.http_stubs import StubHandler, StubServer

Json = dict[str, Any]
NAMESPACE = "axns"
TENANCY = "ocid1.tenancy.oc1..aaaatenancy"
USER = "ocid1.user.oc1..aaaauser"
DOMAIN = "Uocm:EU-FRANKFURT-1-AD-1"
SKEW_SEC = 300.0
PAGE_SIZE = 2


def ocid(kind: str, name: str) -> str:
    return f"ocid1.{kind}.oc1.eu-frankfurt-1.{name}"


class ApiKey:
    """An API key. Generating 2048 bits is slow, so one key serves the whole test session."""

    def __init__(self) -> None:
        self.private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.public = self.private.public_key()
        der = self.public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        self.fingerprint = ":".join(f"{byte:02x}" for byte in hashlib.md5(der, usedforsecurity=False).digest())

    @property
    def key_id(self) -> str:
        return f"{TENANCY}/{USER}/{self.fingerprint}"

    @property
    def public_pem(self) -> str:
        pem = serialization.Encoding.PEM
        return self.public.public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo).decode()

    def pem(self, phrase: str | None = None) -> bytes:
        encryption = serialization.BestAvailableEncryption(phrase.encode()) if phrase else serialization.NoEncryption()
        kind = serialization.PrivateFormat.TraditionalOpenSSL
        return self.private.private_bytes(serialization.Encoding.PEM, kind, encryption)

    def write_config(self, home: Path, *, profile: str = "DEFAULT", phrase: str | None = None, **other: str) -> Path:
        """Write a configuration like that of `oci setup config`; return its path."""
        folder = home / ".oci"
        folder.mkdir(exist_ok=True)
        (folder / "key.pem").write_bytes(self.pem(phrase))
        values = {
            "user": USER,
            "fingerprint": self.fingerprint,
            "tenancy": TENANCY,
            "region": "eu-frankfurt-1",
            "key_file": str(folder / "key.pem"),
            **({"pass_phrase": phrase} if phrase else {}),
            **other,
        }
        config = folder / "config"
        config.write_text(f"[{profile}]\n" + "".join(f"{key}={value}\n" for key, value in values.items()))
        for path in (folder / "key.pem", config):
            path.chmod(0o600)
        return config


def token_error(public_pem: str, key_id: str, token: str) -> str | None:
    """Return why OKE would reject a token, or None: validate the URL in it as OKE does."""
    public = serialization.load_pem_public_key(public_pem.encode())
    assert isinstance(public, rsa.RSAPublicKey)
    try:
        url = urlsplit(base64.urlsafe_b64decode(token).decode())
    except ValueError:
        return "no URL in base64"
    parameters = {name: values[0] for name, values in parse_qs(url.query).items()}
    if url.scheme != "https" or not re.fullmatch(r"containerengine\.[a-z0-9-]+\.oraclecloud\.com", url.netloc):
        return "not a URL of the service"
    if not url.path.startswith("/cluster_request/ocid1.cluster.") or set(parameters) != {"authorization", "date"}:
        return "not a request for a cluster"
    age = datetime.datetime.now(datetime.UTC) - email.utils.parsedate_to_datetime(parameters["date"])
    if abs(age.total_seconds()) > SKEW_SEC:
        return "expired"
    values = {"date": parameters["date"], "(request-target)": f"get {url.path}", "host": url.netloc}
    fields = dict(re.findall(r'(\w+)="([^"]*)"', parameters["authorization"].removeprefix("Signature ")))
    if (fields["keyId"], fields["algorithm"], fields["version"]) != (key_id, "rsa-sha256", "1"):
        return "the key is not known"
    text = "\n".join(f"{name}: {values[name]}" for name in fields["headers"].split())
    try:
        public.verify(base64.b64decode(fields["signature"]), text.encode(), padding.PKCS1v15(), hashes.SHA256())
    except InvalidSignature:
        return "the signature does not verify"
    return None


@dataclass(kw_only=True)
class Fault:
    """Fault response for the next `times` requests whose `METHOD path` matches the pattern."""

    pattern: str
    status: int
    code: str
    message: str
    times: int
    truncated: bool = False
    html: bool = False


@dataclass(kw_only=True)
class Resources:
    """Resources of the tenancy, as the API's JSON. Tests change them."""

    collections: dict[str, list[Json]] = field(default_factory=dict)
    objects: dict[str, Json] = field(default_factory=dict)  # keyed by path below the API version
    kubeconfig: str = ""


class FakeTenancy(StubServer):
    """Server in a thread, with public state."""

    def __init__(self, keys: ApiKey) -> None:
        super().__init__(_Handler)
        self.url = f"http://{self.host}"
        self.keys, self.lock = keys, threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Restore the initial state: one cluster, one GPU pool, one repository and one export."""
        self.resources = default_resources()
        self.requests: list[str] = []
        self.bodies: list[Json] = []
        self.faults: list[Fault] = []

    def fail(
        self, pattern: str, status: int, code: str = "", message: str = "refused", *, times: int = 1000, **flags: bool
    ) -> None:
        self.faults.append(Fault(pattern=pattern, status=status, code=code, message=message, times=times, **flags))

    def count_requests(self, pattern: str) -> int:
        return sum(re.search(pattern, request) is not None for request in self.requests)


def default_resources() -> Resources:
    pool = {
        "id": ocid("nodepool", "pool"),
        "name": "gpus",
        "clusterId": ocid("cluster", "one"),
        "compartmentId": TENANCY,
        "lifecycleState": "ACTIVE",
        "nodeShape": "VM.GPU.A10.1",
        "nodeConfigDetails": {"size": 2},
    }
    target = {
        "id": ocid("mounttarget", "mt"),
        "displayName": "shared",
        "lifecycleState": "ACTIVE",
        "exportSetId": ocid("exportset", "es"),
        "privateIpIds": [ocid("privateip", "ip")],
    }
    endpoints = {"publicEndpoint": "130.61.0.1:6443", "privateEndpoint": "10.0.0.7:6443"}
    cluster = {"name": "training", "lifecycleState": "ACTIVE", "kubernetesVersion": "v1.34.1", "endpoints": endpoints}
    names = [f"team-{n}" for n in range(5)]
    return Resources(
        collections={
            "/compartments": [
                {"id": ocid("compartment", name), "name": name, "lifecycleState": "ACTIVE"} for name in names
            ],
            "/availabilityDomains": [{"name": DOMAIN}],
            "/20181025/limitValues": [{"name": "gpu-a10-count", "availabilityDomain": DOMAIN, "value": 4}],
            "/clusters": [{**cluster, "id": ocid("cluster", "one")}],
            "/nodePools": [pool],
            "/container/repositories": [{"id": ocid("containerrepo", "r"), "displayName": "qlora-fleet"}],
            "/mountTargets": [target],
            "/exports": [{"path": "/models", "fileSystemId": ocid("filesystem", "fs")}],
        },
        objects={
            f"/tenancies/{TENANCY}": {"id": TENANCY, "name": "acme"},
            f"/users/{USER}": {"id": USER, "name": "oracleidentitycloudservice/me@example.com"},
            f"/privateIps/{target['privateIpIds'][0]}": {"ipAddress": "10.0.20.5"},
            "/resourceAvailability": {"used": 1, "available": 3},
        },
    )


class _Handler(StubHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # header and body are two writes; Nagle would delay the second by 40 ms
    server: FakeTenancy

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        path, _, query = self.path.partition("?")
        line = f"{self.command} {unquote(self.path)}"
        with self.server.lock:
            self.server.requests.append(line)
            fault = next(
                (fault for fault in self.server.faults if fault.times and re.search(fault.pattern, line)), None
            )
            if fault is not None:
                fault.times -= 1
        if fault is not None and fault.html:
            return self._send(200, "<html><body>Größe</body></html>".encode("latin-1"), kind="text/html")
        if fault is not None and fault.truncated:
            return self._send(200, b'[{"id": "ocid1', truncated=True)
        if fault is not None:
            return self._send_error(fault.status, fault.code, fault.message)
        with self.server.lock:
            return self._route(re.sub(r"^/\d{8}(?=/)", "", unquote(path)), parse_qs(query), body)

    do_GET = do_POST = _handle

    def _route(self, path: str, query: dict[str, list[str]], body: bytes) -> None:
        resources = self.server.resources
        if self.command == "GET" and path == "/n":
            return self._send(200, json.dumps(NAMESPACE).encode())
        if path.endswith("/kubeconfig/content"):
            self.server.bodies.append(json.loads(body or b"{}"))
            return self._send(200, resources.kubeconfig.encode(), kind="application/x-yaml")
        if "/resourceAvailability" in path:
            return self._send(200, json.dumps(resources.objects["/resourceAvailability"]).encode())
        if "/limitValues" in path:
            return self._send_page("/20181025/limitValues", query)
        if self.command == "POST" and path == "/container/repositories":
            repository = {**json.loads(body), "id": ocid("containerrepo", "new"), "lifecycleState": "AVAILABLE"}
            self.server.bodies.append(repository)
            resources.collections[path].append(repository)
            return self._send(200, json.dumps(repository).encode())
        if self.command == "GET" and path in resources.collections:
            return self._send_page(path, query)
        resource = resources.objects.get(path)
        if resource is None:
            return self._send_error(
                404, "NotAuthorizedOrNotFound", "Authorization failed or requested resource not found."
            )
        return self._send(200, json.dumps(resource).encode())

    def _send_page(self, path: str, query: dict[str, list[str]]) -> None:
        items = self.server.resources.collections[path]
        start, size = int(query.get("page", ["0"])[0]), PAGE_SIZE
        name = query.get("displayName", [None])[0]
        items = [item for item in items if name is None or item.get("displayName") == name]
        if path == "/container/repositories" and query.get("compartmentIdInSubtree") != ["true"]:
            items = [item for item in items if item.get("compartmentId", TENANCY) == query["compartmentId"][0]]
        more = {"opc-next-page": str(start + size)} if start + size < len(items) else {}
        page: Any = items[start : start + size]
        if path == "/container/repositories":
            page = {"items": page, "repositoryCount": len(items)}
        self._send(200, json.dumps(page).encode(), extra=more)

    def _send_error(self, status: int, code: str, message: str) -> None:
        self._send(status, json.dumps({"code": code, "message": message}).encode())

    def _send(
        self,
        status: int,
        body: bytes,
        *,
        kind: str = "application/json",
        extra: Json | None = None,
        truncated: bool = False,
    ) -> None:
        length = {"Content-Length": str(len(body) + 100)} if truncated else {}
        self.reply(status, body, {"content-type": kind, "opc-request-id": "REQUEST/7", **length, **(extra or {})})
        if truncated:
            self.close_connection = True
