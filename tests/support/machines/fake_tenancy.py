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
from collections.abc import Iterator
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


class FakeTenancy(StubServer):
    """Server in a thread. Tests change its resources: lists in `collections`, others in `objects`, by path."""

    def __init__(self, keys: ApiKey) -> None:
        super().__init__(_Handler)
        self.url = f"http://{self.host}"
        self.keys, self.lock = keys, threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Restore the initial state: one cluster, one GPU pool, one repository and one export."""
        cluster, ip = ocid("cluster", "one"), ocid("privateip", "ip")
        endpoints = {"publicEndpoint": "130.61.0.1:6443", "privateEndpoint": "10.0.0.7:6443"}
        pool = {"id": ocid("nodepool", "pool"), "name": "gpus", "clusterId": cluster, "nodeShape": "VM.GPU.A10.1"}
        target = {"id": ocid("mounttarget", "mt"), "displayName": "shared", "exportSetId": ocid("exportset", "es")}
        active = {"lifecycleState": "ACTIVE"}
        self.collections: dict[str, list[Json]] = {
            "/compartments": [
                {"id": ocid("compartment", f"team-{n}"), "name": f"team-{n}", **active} for n in range(5)
            ],
            "/availabilityDomains": [{"name": DOMAIN}],
            "/limitValues": [{"name": "gpu-a10-count", "availabilityDomain": DOMAIN, "value": 4}],
            "/clusters": [
                {"id": cluster, "name": "training", "kubernetesVersion": "v1.34.1", "endpoints": endpoints, **active}
            ],
            "/nodePools": [pool | {"nodeConfigDetails": {"size": 2}, **active}],
            "/container/repositories": [{"id": ocid("containerrepo", "r"), "displayName": "qlora-fleet"}],
            "/mountTargets": [target | {"privateIpIds": [ip], **active}],
            "/exports": [{"path": "/models", "fileSystemId": ocid("filesystem", "fs")}],
        }
        self.objects: dict[str, Any] = {
            "/n": NAMESPACE,
            f"/tenancies/{TENANCY}": {"id": TENANCY, "name": "acme"},
            f"/users/{USER}": {"id": USER, "name": "oracleidentitycloudservice/me@example.com"},
            f"/privateIps/{ip}": {"ipAddress": "10.0.20.5"},
            "/services/compute/limits/gpu-a10-count/resourceAvailability": {"used": 1, "available": 3},
        }
        self.kubeconfig = ""
        self.requests: list[str] = []
        self.bodies: list[Json] = []
        self._faults: list[tuple[str, Iterator[int], bytes, str]] = []

    def fail(self, pattern: str, status: int, code: object = "", *, html: str = "", times: int = 1000) -> None:
        """Answer the next `times` requests whose `METHOD path` matches with an error, or with a page of HTML."""
        body = html or json.dumps({"code": code, "message": "refused"})
        answers = iter([status] * times)
        self._faults.append((pattern, answers, body.encode(), "text/html" if html else "application/json"))

    def fault(self, line: str) -> tuple[int, bytes, str] | None:
        """Record a request, and return the answer of a fault for it."""
        with self.lock:
            self.requests.append(line)
            for pattern, answers, body, kind in self._faults:
                if re.search(pattern, line) and (status := next(answers, None)) is not None:
                    return status, body, kind
        return None

    def count_requests(self, pattern: str) -> int:
        return sum(re.search(pattern, request) is not None for request in self.requests)


class _Handler(StubHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # header and body are two writes; Nagle would delay the second by 40 ms
    server: FakeTenancy

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if (fault := self.server.fault(f"{self.command} {unquote(self.path)}")) is not None:
            self._send(*fault)
            return
        path, _, query = self.path.partition("?")
        with self.server.lock:
            self._route(re.sub(r"^(/\d{8})+(?=/)", "", unquote(path)), parse_qs(query), body)

    do_GET = do_POST = _handle

    def _route(self, path: str, query: dict[str, list[str]], body: bytes) -> None:
        collection = next((key for key in self.server.collections if path.endswith(key)), None)
        if path.endswith("/kubeconfig/content"):
            self.server.bodies.append(json.loads(body or b"{}"))
            self._send(200, self.server.kubeconfig.encode(), "application/x-yaml")
        elif self.command == "POST" and collection is not None:
            created = {**json.loads(body), "id": ocid("containerrepo", "new"), "lifecycleState": "AVAILABLE"}
            self.server.bodies.append(created)
            self.server.collections[collection].append(created)
            self._send(200, json.dumps(created).encode())
        elif collection is not None:
            self._send_page(collection, query)
        elif path in self.server.objects:
            self._send(200, json.dumps(self.server.objects[path]).encode())
        else:
            self._send(404, json.dumps({"code": "NotAuthorizedOrNotFound", "message": "not found"}).encode())

    def _send_page(self, path: str, query: dict[str, list[str]]) -> None:
        start, name = int(query.get("page", ["0"])[0]), query.get("displayName", [None])[0]
        items = [item for item in self.server.collections[path] if name is None or item.get("displayName") == name]
        more = {"opc-next-page": str(start + PAGE_SIZE)} if start + PAGE_SIZE < len(items) else {}
        page: Any = items[start : start + PAGE_SIZE]
        if path == "/container/repositories":
            page = {"items": page, "repositoryCount": len(items)}
        self._send(200, json.dumps(page).encode(), **more)

    def _send(self, status: int, body: bytes, kind: str = "application/json", **more: str) -> None:
        self.reply(status, body, {"content-type": kind, "opc-request-id": "REQUEST/7", **more})
