"""Minimal Protobuf decoder for the bodies that kubectl 1.32+ sends for `auth can-i`, `auth whoami` and `drain`."""

from collections.abc import Iterator

from tests.support.kubernetes.api.answers import Json, Refusal

MAGIC = b"k8s\x00"
_ATTRIBUTES = {1: "namespace", 2: "verb", 3: "group", 4: "version", 5: "resource", 6: "subresource", 7: "name"}


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the length-delimited fields of a message; skip numbers."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        if tag & 7 == 2:
            size, at = _varint(data, at)
            yield tag >> 3, data[at : at + size]
            at += size
        else:
            _, at = _varint(data, at)


def _text(data: bytes, names: dict[int, str]) -> dict[str, str]:
    return {names[number]: value.decode() for number, value in _fields(data) if number in names}


def decode(body: bytes) -> Json:
    """Decode a SelfSubject review or an eviction (without its options). Raises Refusal (415) for other kinds."""
    envelope = dict(_fields(body[len(MAGIC) :]))
    about = _text(envelope.get(1, b""), {1: "apiVersion", 2: "kind"})
    if about.get("kind") == "Eviction":
        return {**about, "metadata": {}}
    if not about.get("kind", "").startswith("SelfSubject"):
        message = "the body of the request was in an unknown format - accepted media types include: application/json"
        raise Refusal(415, "UnsupportedMediaType", message)
    spec: Json = {}
    for number, value in _fields(dict(_fields(envelope.get(2, b""))).get(2, b"")):
        if number == 1:
            spec["resourceAttributes"] = _text(value, _ATTRIBUTES)
    return {**about, "metadata": {}, "spec": spec}
