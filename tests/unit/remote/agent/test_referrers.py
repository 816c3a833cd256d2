"""Documents and signatures of an image: real HTTP with a registry with OCI 1.1, and with an older one.

Not covered: cosign and oras themselves; their layouts are copied from their documentation.
"""

import base64
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from remote.agent.build_vm import __main__ as registry_main
from remote.agent.shared import referrers
from remote.agent.shared.registry_api import INDEX_TYPE, MANIFEST_TYPE, Registry
from remote.hosts.command import Secret
from remote.image import artifact, bom
from remote.image.artifact import InvalidKey, NeedsPassPhrase
from tasks.image import sbom
from tests.support.machines.failures import raises_agent_error
from tests.support.machines.oci_registry import OciRegistry, digest_of

IMAGE = json.dumps(
    {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": {"digest": "sha256:c"}, "layers": []}
).encode()
DIGEST = digest_of(IMAGE)
DOCUMENTS: list[dict[str, Any]] = [
    {"kind": f"application/{name}+json", "title": f"{name}.json", "text": f'{{"{name}": 1}}', "notes": {"made": "now"}}
    for name in ("cdx", "spdx", "in-toto")
]
REPOSITORY = "fra.ocir.io/ns/repo"


@pytest.fixture(scope="module")
def running() -> Iterator[OciRegistry]:
    with OciRegistry() as server:
        yield server


@pytest.fixture
def server(running: OciRegistry) -> OciRegistry:
    for contents in (running.blobs, running.manifests, running.tags, running.fails_once):
        contents.clear()
    running.lists_referrers, running.next_page_server = True, ""
    running.put(IMAGE, "1.0")
    return running


@pytest.fixture(scope="module")
def registry(running: OciRegistry) -> Registry:
    return Registry(running.host, "ns/repo", None)


@pytest.mark.parametrize("lists", [True, False], ids=["OCI 1.1", "before it"])
def test_documents_are_attached_once_even_if_attached_twice(
    registry: Registry, server: OciRegistry, lists: bool
) -> None:
    server.lists_referrers = lists
    answer = referrers.attach(registry, DIGEST, DOCUMENTS)
    tag = DIGEST.replace(":", "-")
    assert answer["lists"] == ("the registry's own list" if lists else f"tag {tag}")
    assert (tag in server.tags) is not lists
    assert referrers.attach(registry, DIGEST, DOCUMENTS) == answer
    described = referrers.describe_image(registry, "1.0")
    assert (described["digest"], described["lists"]) == (DIGEST, answer["lists"])
    assert sorted(document["text"] for document in described["documents"]) == sorted(
        document["text"] for document in DOCUMENTS
    )
    manifest = json.loads(server.manifests[answer["digests"][0]])
    assert manifest["subject"] == {"mediaType": MANIFEST_TYPE, "digest": DIGEST, "size": len(IMAGE)}
    assert manifest["artifactType"] == manifest["layers"][0]["mediaType"] == "application/cdx+json"
    assert manifest["layers"][0]["annotations"] == {"org.opencontainers.image.title": "cdx.json"}


def test_other_users_entries_under_the_tag_are_kept(registry: Registry, server: OciRegistry) -> None:
    server.lists_referrers = False
    theirs = {"mediaType": MANIFEST_TYPE, "digest": server.put(b'{"schemaVersion": 2}'), "size": 20}
    tag = DIGEST.replace(":", "-")
    server.put(json.dumps({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [theirs]}).encode(), tag)
    referrers.attach(registry, DIGEST, DOCUMENTS[:1])
    listed = json.loads(server.manifests[server.tags[tag]])["manifests"]
    assert listed[0] == theirs
    assert listed[1]["artifactType"] == "application/cdx+json"


def test_a_list_that_continues_on_another_server_is_refused(registry: Registry, server: OciRegistry) -> None:
    referrers.attach(registry, DIGEST, DOCUMENTS)
    server.next_page_server = "https://evil.example.com"
    with raises_agent_error("refused", r"evil\.example\.com"):
        referrers.describe_image(registry, DIGEST)


def test_a_document_that_does_not_match_its_digest_is_refused(registry: Registry, server: OciRegistry) -> None:
    referrers.attach(registry, DIGEST, DOCUMENTS[:1])
    server.blobs[digest_of(DOCUMENTS[0]["text"].encode())] = b"something else"
    with raises_agent_error("refused", r"ns/repo .*sha256:"):
        referrers.describe_image(registry, DIGEST)


@pytest.mark.parametrize("odd", [5, "x", [5, "x", None, {"digest": 5}], {"a": 1}])
def test_malformed_json_values_are_ignored(registry: Registry, server: OciRegistry, odd: object) -> None:
    server.lists_referrers = False
    image = server.put(json.dumps({"schemaVersion": 2, "config": odd, "layers": odd}).encode(), "odd")
    tag = image.replace(":", "-")
    part = {"schemaVersion": 2, "artifactType": odd, "annotations": odd, "layers": odd, "manifests": odd}
    entry = server.put(json.dumps(part).encode(), f"{tag}.sig")
    listed = [{"digest": entry, "artifactType": odd}, *(odd if isinstance(odd, list) else [])]
    server.put(json.dumps({"schemaVersion": 2, "manifests": listed}).encode(), tag)
    described = referrers.describe_image(registry, "odd")
    assert [document["text"] for document in described["documents"]] == [None]
    assert list(sbom._lines(described, []))[-1][0] == "documents"
    server.put(json.dumps(part).encode(), tag)
    assert referrers.describe_image(registry, "odd")["documents"] == []


@pytest.mark.parametrize("size", [10**400, -1, True, 1.5, None])
def test_an_invalid_size_is_ignored(size: object) -> None:
    layers = [{"size": size}, {"size": 5_000_000}]
    described = {"digest": DIGEST, "manifest": {"layers": layers}, "config": None, "lists": "x", "documents": []}
    assert ("registry", "0.01 GB in 1 layers") in list(sbom._lines(described, []))


def test_a_document_nested_too_deeply_is_reported() -> None:
    deep, problems = "[" * 100_000, list[str]()
    document = {"digest": DIGEST, "kind": bom.SPDX, "notes": {}, "text": deep}
    described = {"digest": DIGEST, "manifest": {}, "config": deep, "lists": "x", "documents": [document]}
    assert list(sbom._lines(described, problems))[-1][0] == "documents"
    (problem,) = problems
    assert bom.SPDX in problem


def test_a_request_succeeds_although_the_registry_fails_once(
    server: OciRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_main, "FIRST_WAIT_SEC", 0.0)
    target = {"host": server.host, "path": "ns/repo", "login": None, "token_hosts": []}
    server.fails_once += [("PUT", "/manifests/"), ("PUT", "/blobs/"), ("GET", "/referrers/")]
    reply = registry_main.handle_request({**target, "do": "attach", "subject": DIGEST, "documents": DOCUMENTS})
    assert len(reply["digests"]) == 3
    assert server.fails_once == []
    reply = registry_main.handle_request({**target, "do": "look", "name": "nowhere"})
    assert (reply["kind"], "`inv push`" in reply["remedy"]) == ("usage", True)


def key_pem(key: Any, pass_phrase: bytes | None = None) -> str:
    encryption = serialization.BestAvailableEncryption(pass_phrase) if pass_phrase else serialization.NoEncryption()
    pem: bytes = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    return pem.decode()


def public_pem(key: ec.EllipticCurvePrivateKey) -> str:
    key_format = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, key_format).decode()


def test_a_signature_is_in_cosigns_layout_and_others_are_kept(registry: Registry, server: OciRegistry) -> None:
    mine, theirs, unused = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    text = artifact.build_payload(REPOSITORY, DIGEST)
    for key in (theirs, mine):
        referrers.sign(registry, DIGEST, text, artifact.sign(key, text))
    manifest = json.loads(server.manifests[server.tags[f"sha256-{DIGEST[7:]}.sig"]])
    payload_type = "application/vnd.dev.cosign.simplesigning.v1+json"
    assert [layer["mediaType"] for layer in manifest["layers"]] == [payload_type] * 2
    payload = server.blobs[manifest["layers"][1]["digest"]]
    assert json.loads(payload)["critical"] == {
        "identity": {"docker-reference": REPOSITORY},
        "image": {"docker-manifest-digest": DIGEST},
        "type": "cosign container image signature",
    }
    signatures = referrers.describe_image(registry, DIGEST)["signatures"]
    keys = {name: artifact.load_public_key(public_pem(key)) for name, key in (("mine", mine), ("theirs", theirs))}
    assert all(artifact.is_signed(key, REPOSITORY, DIGEST, signatures) for key in keys.values())
    assert not artifact.is_signed(unused.public_key(), REPOSITORY, DIGEST, signatures)
    # A signature for another repository or another image does not count.
    assert not artifact.is_signed(keys["mine"], "fra.ocir.io/ns/other", DIGEST, signatures)
    assert not artifact.is_signed(keys["mine"], REPOSITORY, f"sha256:{'0' * 64}", signatures)


@pytest.mark.parametrize("part", [
    {"signature": "no base64!"}, {"signature": None}, {"payload": None}, {"payload": "{}"}, {"payload": "[" * 9},
    {"payload": '{"critical": []}'}, {"signature": base64.b64encode(b"x" * 70).decode()},
])  # fmt: skip
def test_an_invalid_signature_does_not_count(part: dict[str, object]) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    text = artifact.build_payload(REPOSITORY, DIGEST)
    if isinstance(part.get("payload"), str):  # a valid signature of an invalid payload
        text = str(part["payload"])
    entry = {"payload": text, "signature": artifact.sign(key, text), **part}
    assert not artifact.is_signed(key.public_key(), REPOSITORY, DIGEST, [entry])


def test_a_key_that_cannot_sign_is_refused_with_the_command_that_creates_one() -> None:
    key, phrase = ec.generate_private_key(ec.SECP256R1()), """ph'r"äse \\ $x"""
    encrypted = key_pem(key, phrase.encode())
    assert artifact.load_private_key(encrypted, Secret(phrase)).private_numbers() == key.private_numbers()
    assert artifact.load_private_key(key_pem(key), Secret("needless")).private_numbers() == key.private_numbers()
    with pytest.raises(NeedsPassPhrase):
        artifact.load_private_key(encrypted, None)
    unusable = {
        "pass phrase": (encrypted, Secret("another")),
        "ECDSA": (key_pem(ec.generate_private_key(ec.SECP384R1())), None),
        "private key": ("not a key", None),
        "cosign": ("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----", None),
    }
    for token, (pem, pass_phrase) in unusable.items():
        with pytest.raises(InvalidKey, match=token) as caught:
            artifact.load_private_key(pem, pass_phrase)
        assert "openssl genpkey -algorithm EC" in str(caught.value)
        assert phrase not in str(caught.value)
    with pytest.raises(InvalidKey, match="openssl pkey -in KEY -pubout"):
        artifact.load_public_key(key_pem(key))


def test_a_digest_has_the_fallback_tag_of_the_standard() -> None:
    assert referrers.fallback_tag(f"sha256:{'ab' * 32}") == f"sha256-{'ab' * 32}"
    assert digest_of(b"{}") == f"sha256:{hashlib.sha256(b'{}').hexdigest()}"
