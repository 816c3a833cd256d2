"""Documents and signatures beside an image: a real HTTP exchange with a registry that speaks OCI 1.1, and with one from
before it. Not covered: cosign and oras themselves; their layouts are written down here as their documents have them.
"""

import base64
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from remote.hosts.command import Secret
from remote.image.sbom import bom, signature
from remote.image.sbom.signature import InvalidKey, NeedsPassPhrase
from remote.image.vm_agent.registry import main as asking
from remote.image.vm_agent.registry import referrers
from remote.image.vm_agent.registry.api import INDEX, MANIFEST, Registry
from tasks.image.sbom import show
from tests.support.machines.failures import fails
from tests.support.machines.oci_registry import OciRegistry, digest_of

IMAGE = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "config": {"digest": "sha256:c"}, "layers": []}).encode()
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
    for kept in (running.blobs, running.manifests, running.tags, running.fails_once):
        kept.clear()
    running.lists, running.next_page_at = True, ""
    running.put(IMAGE, "1.0")
    return running


@pytest.fixture(scope="module")
def registry(running: OciRegistry) -> Registry:
    return Registry(running.host, "ns/repo", None)


@pytest.mark.parametrize("lists", [True, False], ids=["OCI 1.1", "before it"])
def test_documents_stand_beside_the_image_once_however_often_they_are_put_there(
    registry: Registry, server: OciRegistry, lists: bool
) -> None:
    server.lists = lists
    answer = referrers.attach(registry, DIGEST, DOCUMENTS)
    tag = DIGEST.replace(":", "-")
    assert answer["lists"] == ("the registry's own list" if lists else f"tag {tag}")
    assert (tag in server.tags) is not lists
    assert referrers.attach(registry, DIGEST, DOCUMENTS) == answer
    found = referrers.look(registry, "1.0")
    assert (found["digest"], found["lists"]) == (DIGEST, answer["lists"])
    assert sorted(document["text"] for document in found["documents"]) == sorted(
        document["text"] for document in DOCUMENTS
    )
    manifest = json.loads(server.manifests[answer["digests"][0]])
    assert manifest["subject"] == {"mediaType": MANIFEST, "digest": DIGEST, "size": len(IMAGE)}
    assert manifest["artifactType"] == manifest["layers"][0]["mediaType"] == "application/cdx+json"
    assert manifest["layers"][0]["annotations"] == {"org.opencontainers.image.title": "cdx.json"}


def test_what_others_listed_under_the_tag_stays(registry: Registry, server: OciRegistry) -> None:
    server.lists = False
    theirs = {"mediaType": MANIFEST, "digest": server.put(b'{"schemaVersion": 2}'), "size": 20}
    tag = DIGEST.replace(":", "-")
    server.put(json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [theirs]}).encode(), tag)
    referrers.attach(registry, DIGEST, DOCUMENTS[:1])
    listed = json.loads(server.manifests[server.tags[tag]])["manifests"]
    assert listed[0] == theirs
    assert listed[1]["artifactType"] == "application/cdx+json"


def test_a_list_that_goes_on_at_another_server_is_refused(registry: Registry, server: OciRegistry) -> None:
    referrers.attach(registry, DIGEST, DOCUMENTS)
    server.next_page_at = "https://evil.example.com"
    with fails("refused", r"continues its list at evil\.example\.com; refused"):
        referrers.look(registry, DIGEST)


def test_a_document_with_other_bytes_than_its_digest_says_is_refused(registry: Registry, server: OciRegistry) -> None:
    referrers.attach(registry, DIGEST, DOCUMENTS[:1])
    server.blobs[digest_of(DOCUMENTS[0]["text"].encode())] = b"something else"
    with fails("refused", "answers with other bytes than sha256:"):
        referrers.look(registry, DIGEST)


@pytest.mark.parametrize("odd", [5, "x", [5, "x", None, {"digest": 5}], {"a": 1}])
def test_what_no_registry_should_send_is_passed_over(registry: Registry, server: OciRegistry, odd: object) -> None:
    server.lists = False
    image = server.put(json.dumps({"schemaVersion": 2, "config": odd, "layers": odd}).encode(), "odd")
    tag = image.replace(":", "-")
    part = {"schemaVersion": 2, "artifactType": odd, "annotations": odd, "layers": odd, "manifests": odd}
    entry = server.put(json.dumps(part).encode(), f"{tag}.sig")
    listed = [{"digest": entry, "artifactType": odd}, *(odd if isinstance(odd, list) else [])]
    server.put(json.dumps({"schemaVersion": 2, "manifests": listed}).encode(), tag)
    found = referrers.look(registry, "odd")
    assert [one["text"] for one in found["documents"]] == [None]
    assert list(show._lines(found, []))[-1][0] == "documents"
    server.put(json.dumps(part).encode(), tag)
    assert referrers.look(registry, "odd")["documents"] == []


@pytest.mark.parametrize("size", [10**400, -1, True, 1.5, None])
def test_a_size_that_is_none_is_passed_over(size: object) -> None:
    layers = [{"size": size}, {"size": 5_000_000}]
    found = {"digest": DIGEST, "manifest": {"layers": layers}, "config": None, "lists": "x", "documents": []}
    assert ("registry", "0.01 GB in 1 layers") in list(show._lines(found, []))


def test_a_document_nested_too_deep_is_named() -> None:
    deep, wrong = "[" * 100_000, list[str]()
    document = {"digest": DIGEST, "kind": bom.SPDX, "notes": {}, "text": deep}
    found = {"digest": DIGEST, "manifest": {}, "config": deep, "lists": "x", "documents": [document]}
    assert list(show._lines(found, wrong))[-1][0] == "documents"
    assert wrong == [f"the document of kind {bom.SPDX} cannot be read"]


def test_a_question_is_answered_although_the_registry_fails_once(
    server: OciRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "FIRST_WAIT_SEC", 0.0)
    where = {"host": server.host, "path": "ns/repo", "login": None, "token_hosts": []}
    server.fails_once += [("PUT", "/manifests/"), ("PUT", "/blobs/"), ("GET", "/referrers/")]
    said = asking.ask({**where, "do": "attach", "subject": DIGEST, "documents": DOCUMENTS})
    assert len(said["digests"]) == 3
    assert server.fails_once == []
    said = asking.ask({**where, "do": "look", "name": "nowhere"})
    assert (said["kind"], "`inv push` puts it there" in said["message"]) == ("usage", True)


def key_pem(key: Any, pass_phrase: bytes | None = None) -> str:
    how = serialization.BestAvailableEncryption(pass_phrase) if pass_phrase else serialization.NoEncryption()
    pem: bytes = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)
    return pem.decode()


def public_pem(key: ec.EllipticCurvePrivateKey) -> str:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, form).decode()


def test_a_signature_is_found_where_cosign_looks_and_others_stay(registry: Registry, server: OciRegistry) -> None:
    mine, theirs, nobodys = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    text = signature.payload(REPOSITORY, DIGEST)
    for key in (theirs, mine):
        referrers.sign(registry, DIGEST, text, signature.sign(key, text))
    manifest = json.loads(server.manifests[server.tags[f"sha256-{DIGEST[7:]}.sig"]])
    assert [one["mediaType"] for one in manifest["layers"]] == ["application/vnd.dev.cosign.simplesigning.v1+json"] * 2
    payload = server.blobs[manifest["layers"][1]["digest"]]
    assert json.loads(payload)["critical"] == {
        "identity": {"docker-reference": REPOSITORY},
        "image": {"docker-manifest-digest": DIGEST},
        "type": "cosign container image signature",
    }
    found = referrers.look(registry, DIGEST)["signatures"]
    keys = {name: signature.public_key(public_pem(key)) for name, key in (("mine", mine), ("theirs", theirs))}
    assert all(signature.is_signed(key, REPOSITORY, DIGEST, found) for key in keys.values())
    assert not signature.is_signed(nobodys.public_key(), REPOSITORY, DIGEST, found)
    # Brought here from another repository, or of another image, it counts for nothing.
    assert not signature.is_signed(keys["mine"], "fra.ocir.io/ns/other", DIGEST, found)
    assert not signature.is_signed(keys["mine"], REPOSITORY, f"sha256:{'0' * 64}", found)


@pytest.mark.parametrize("part", [
    {"signature": "no base64!"}, {"signature": None}, {"payload": None}, {"payload": "{}"}, {"payload": "[" * 9},
    {"payload": '{"critical": []}'}, {"signature": base64.b64encode(b"x" * 70).decode()},
])  # fmt: skip
def test_what_is_no_signature_is_no_signature(part: dict[str, object]) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    text = signature.payload(REPOSITORY, DIGEST)
    if isinstance(part.get("payload"), str):  # the signature is right, and what it signs is not
        text = str(part["payload"])
    one = {"payload": text, "signature": signature.sign(key, text), **part}
    assert not signature.is_signed(key.public_key(), REPOSITORY, DIGEST, [one])


def test_a_key_that_cannot_sign_is_refused_with_how_one_is_made() -> None:
    key, phrase = ec.generate_private_key(ec.SECP256R1()), """ph'r"äse \\ $x"""
    sealed = key_pem(key, phrase.encode())
    assert signature.private_key(sealed, Secret(phrase)).private_numbers() == key.private_numbers()
    assert signature.private_key(key_pem(key), Secret("needless")).private_numbers() == key.private_numbers()
    with pytest.raises(NeedsPassPhrase):
        signature.private_key(sealed, None)
    wrong = {
        "or the pass phrase is wrong": (sealed, Secret("another")),
        "is no ECDSA key on P-256": (key_pem(ec.generate_private_key(ec.SECP384R1())), None),
        "holds no private key that can be read": ("not a key", None),
        "is encrypted in cosign's own way": ("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----", None),
    }
    for words, (pem, given) in wrong.items():
        with pytest.raises(InvalidKey, match=words) as no:
            signature.private_key(pem, given)
        assert "openssl genpkey -algorithm EC" in str(no.value)
        assert phrase not in str(no.value)
    with pytest.raises(InvalidKey, match="openssl pkey -in KEY -pubout"):
        signature.public_key(key_pem(key))


def test_a_digest_has_the_tag_that_the_standard_gives_it() -> None:
    assert referrers.tag_of(f"sha256:{'ab' * 32}") == f"sha256-{'ab' * 32}"
    assert digest_of(b"{}") == f"sha256:{hashlib.sha256(b'{}').hexdigest()}"
