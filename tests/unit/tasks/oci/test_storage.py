"""`inv adapter.push --bucket` with the real SDK against a stand-in of Object Storage that verifies each signature.

Not covered: a real bucket.
"""

import base64
import dataclasses
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("oci", reason="Oracle's SDK is not installed: `make sdk` installs it")

from invoke import Context

from tasks.adapter.push import push_adapter
from tasks.errors import ConfirmationRequired, RetryableError, TaskFailed, UsageError
from tasks.oci.access import clients
from tasks.oci.storage import bucket as storage
from tasks.oci.storage.push import place_of, push
from tasks.settings.load import Settings
from tests.support.kubernetes import pki
from tests.support.machines.fake_buckets import Buckets
from tests.support.machines.fake_tenancy import FakeTenancy, Keys
from tests.support.reports.training_run import RECORD, with_adapter

FILES = {
    "README.md": b"# card",
    "adapter_config.json": b"{}",
    "adapter_model.safetensors": bytes(range(250)) * 10,
    "empty": b"",
}
PLACE = "oci://adapters@axns/team/one"
Make = Callable[..., Settings]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pushing:
    """FILES in a folder, of which the third goes up in three parts, and the bucket that they are pushed to."""

    tenancy: FakeTenancy
    settings: Settings
    folder: Path

    @property
    def stored(self) -> dict[str, bytes]:
        return self.tenancy.world.buckets.objects["adapters"]

    def push(self, place: str = PLACE) -> list[str]:
        """What was said."""
        said: list[str] = []
        self.tenancy.requests.clear()
        push(self.settings, place, "r", {name: self.folder / name for name in FILES}, said.append)
        return said


@pytest.fixture
def pushing(tenancy: FakeTenancy, settings: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pushing:
    monkeypatch.setattr(storage, "PART_BYTES", 1000)
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    return Pushing(tenancy=tenancy, settings=settings(), folder=tmp_path)


def test_every_file_is_in_the_bucket_and_the_sums_are_sent_last(pushing: Pushing) -> None:
    pushing.push()
    sums = pushing.stored.pop("team/one/SHA256SUMS").decode()
    assert pushing.stored == {f"team/one/{name}": content for name, content in FILES.items()}
    assert sums == "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in FILES.items())
    sent = [request for request in pushing.tenancy.requests if request.startswith(("PUT", "POST"))]
    assert "SHA256SUMS" in sent[-1]


def test_a_second_push_of_the_same_sends_nothing(pushing: Pushing) -> None:
    pushing.push()
    said = pushing.push()
    assert pushing.tenancy.asked("^(PUT|POST)") == 0
    assert all(line.endswith("is there already") for line in said)
    assert len(said) == len(FILES) + 1


@pytest.mark.parametrize(
    ("moment", "left"),
    [("PUT .*README", 9), ("POST .*/u$", 7), ("uploadPartNum=3", 4), ("POST .*uploadId", 3), ("PUT .*SUMS", 1)],
)
def test_a_push_that_ended_anywhere_looks_unfinished_and_goes_on(pushing: Pushing, moment: str, left: int) -> None:
    pushing.tenancy.fail(moment, 503, "ServiceUnavailable")
    with pytest.raises(RetryableError, match="asked several times"):
        pushing.push()
    assert "team/one/SHA256SUMS" not in pushing.stored
    pushing.tenancy.faults.clear()
    pushing.push()
    assert pushing.tenancy.asked("^(PUT|POST)") == left
    assert pushing.stored.keys() == {f"team/one/{name}" for name in (*FILES, "SHA256SUMS")}
    assert pushing.stored["team/one/adapter_model.safetensors"] == FILES["adapter_model.safetensors"]


@pytest.mark.parametrize("fault", [{"status": 429}, {"status": 500}, {"status": 200, "lost": True}])
def test_what_passes_is_asked_again_with_the_same_bytes(pushing: Pushing, fault: dict[str, int]) -> None:
    for pattern in ("PUT .*README", "PUT .*uploadPartNum=2", "HEAD .*config", "GET .*/o[?]"):
        pushing.tenancy.fail(pattern, **fault, times=1)  # type: ignore[arg-type]
    pushing.push()
    pushing.push()
    assert pushing.stored["team/one/adapter_model.safetensors"] == FILES["adapter_model.safetensors"]


def test_what_is_not_there_as_it_was_sent_is_named_and_sent_again(pushing: Pushing) -> None:
    pushing.tenancy.world.buckets.rots = {"team/one/README.md"}
    with pytest.raises(ConfirmationRequired, match=r"'team/one/README.md' is not in the bucket as it was sent"):
        pushing.push()
    pushing.tenancy.world.buckets.rots = set()
    pushing.push()
    assert pushing.tenancy.asked("^PUT") == 1
    assert pushing.stored["team/one/README.md"] == FILES["README.md"]


def test_a_place_with_anything_else_in_it_stays_as_it_is(pushing: Pushing) -> None:
    stored = pushing.stored
    stored |= {"team/one/": b"", "team/one/notes.txt": b"mine", "team/onemore": b"not below it"}
    with pytest.raises(UsageError, match=r"holds other objects, such as 'team/one/notes.txt'; name another prefix"):
        pushing.push()
    del stored["team/one/notes.txt"]
    pushing.push()
    before = dict(stored)
    (pushing.folder / "README.md").write_bytes(b"# another card")
    with pytest.raises(UsageError, match="holds another version, by its SHA256SUMS"):
        pushing.push()
    assert pushing.tenancy.asked("^(PUT|POST)") == 0
    assert stored == before


def test_a_file_that_changes_while_it_is_sent_is_refused_by_the_service(
    pushing: Pushing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_body", lambda content: content + b"!")
    with pytest.raises(UsageError, match=r"sending team/one/README.md: 400 UnmatchedContentMD5"):
        pushing.push()
    assert not pushing.stored


@pytest.mark.parametrize(
    ("place", "fault", "error", "said"),
    [
        ("adapters", None, UsageError, "expected oci://BUCKET@NAMESPACE/PREFIX, found 'adapters'"),
        ("oci://adapters@axns/a//b", None, UsageError, "expected oci://BUCKET"),
        ("oci://none@axns/a", None, UsageError, "listing bucket none of namespace axns in eu-frankfurt-1: 404 Buck"),
        ("oci://none/a", None, UsageError, "to manage objects in tenancy where target.bucket.name='none'"),
        ("oci://adapters@other/a", None, UsageError, "other is not this tenancy's namespace, which is axns"),
        (PLACE, (401, "NotAuthenticated"), UsageError, "is not accepted in eu-frankfurt-1"),
        (PLACE, (403, "NotAllowed"), UsageError, "Allow group GROUP to manage objects in tenancy where target.bucket"),
        (PLACE, (429, "TooManyRequests"), RetryableError, "the same again later"),
        (PLACE, (503, "ServiceUnavailable"), RetryableError, "the same again later"),
    ],
)
def test_what_cannot_be_pushed_is_one_line_that_says_what_to_do(
    pushing: Pushing, place: str, fault: tuple[int, str] | None, error: type[TaskFailed], said: str
) -> None:
    if fault is not None:
        pushing.tenancy.fail("GET .*/o[?]", *fault)
    with pytest.raises(error, match=re.escape(said)):
        pushing.push(place)
    assert pushing.tenancy.asked("^(PUT|POST)") == 0


def test_a_page_of_some_proxy_is_not_taken_for_a_list(pushing: Pushing) -> None:
    pushing.tenancy.fail("GET .*/o[?]", 200, html=True)
    with pytest.raises(RetryableError, match="is a proxy between"):
        pushing.push()


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("_get_objects", {"objects": ["README.md"]}),
        ("_get_objects", {"objects": [{"size": 3}]}),
        ("_get_objects", {"objects": [{"name": "x", "size": "large"}]}),
        ("_get_uploads", [{"object": "team/one/adapter_model.safetensors"}]),
        ("_get_uploads", [{"object": "team/one/adapter_model.safetensors", "uploadId": ""}]),
        ("_post_uploads", {}),
        ("_post_uploads", {"uploadId": None}),
        ("_get_upload", [{"partNumber": "one"}]),
        ("_get_upload", [{"size": 1}]),
        ("_get_upload", [1]),
    ],
)
def test_objects_that_are_not_as_the_api_has_them_are_one_line(
    pushing: Pushing, monkeypatch: pytest.MonkeyPatch, asked: str, answer: object
) -> None:
    monkeypatch.setattr(Buckets, asked, lambda *_: (200, json.dumps(answer).encode(), {}))
    with pytest.raises(RetryableError, match="; is a proxy between"):
        pushing.push()


def test_a_part_that_is_confirmed_without_a_tag_is_one_line(pushing: Pushing, monkeypatch: pytest.MonkeyPatch) -> None:
    def untagged(_: Buckets, *asked: Any) -> tuple[int, bytes, dict[str, str]]:
        md5 = hashlib.md5(asked[3], usedforsecurity=False).digest()
        return 200, b"", {"opc-content-md5": base64.b64encode(md5).decode()}

    monkeypatch.setattr(Buckets, "_put_upload", untagged)
    with pytest.raises(RetryableError, match=r"^sending team/one/adapter_model.safetensors: an object is not"):
        pushing.push()


def test_over_tls_the_sdk_waits_to_be_told_to_go_on_and_sends_the_same(
    keys: Keys, pushing: Pushing, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Only there: `Expect: 100-continue` has a connection of the SDK's own."""
    authority, context = pki.make(tmp_path_factory.mktemp("pki"))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority))
    with FakeTenancy(keys, tls=context) as server:
        monkeypatch.setattr(clients, "ENDPOINT", server.url)
        server.world = pushing.tenancy.world
        server.fail("PUT .*uploadPartNum=2", 503, "ServiceUnavailable", times=1)
        pushing.push()
        assert server.asked("PUT .*uploadPartNum=2") == 2
    assert all(pushing.stored[f"team/one/{name}"] == content for name, content in FILES.items())


def test_a_right_that_only_large_files_need_is_named(pushing: Pushing) -> None:
    pushing.tenancy.fail("GET .*/u[?]?$", 404, "BucketNotFound")
    with pytest.raises(UsageError, match=r"Allow group GROUP to read buckets in tenancy where target.bucket.name="):
        pushing.push()


def test_without_a_prefix_files_go_below_the_runs_own_name() -> None:
    place = place_of("oci://adapters/", "20261122-train")
    assert (place.bucket, place.namespace, place.name("README.md")) == ("adapters", None, "20261122-train/README.md")


def test_the_command_notes_where_the_adapter_is(
    tenancy: FakeTenancy, project: Path, context: Callable[..., Context], capsys: pytest.CaptureFixture[str]
) -> None:
    run = with_adapter(project / "results" / "20261122-000000-train")
    digest = hashlib.sha256(b"weights").hexdigest()
    dataclasses.replace(RECORD, adapter_sha256=digest).write(run)
    with pytest.raises(UsageError, match=r"name one of --folder=DIR, --oci=HOST/REPOSITORY:TAG and --bucket=oci://"):
        push_adapter(context(), None, folder="here", oci=None, bucket=PLACE, merged=False)
    with pytest.raises(UsageError, match=r"that is a bucket; type: --bucket=oci://adapters@axns/team/one"):
        push_adapter(context(), None, folder=None, oci=PLACE, bucket=None, merged=False)
    push_adapter(context(), None, folder=None, oci=None, bucket="oci://adapters", merged=False)
    noted = json.loads((run / "adapter-push.json").read_text())
    assert noted["place"] == "oci://adapters@axns/r"
    assert noted["sha256"]["adapter_model.safetensors"] == digest
    stored = tenancy.world.buckets.objects["adapters"]
    assert stored.keys() == {"r/README.md", "r/adapter_model.safetensors", "r/SHA256SUMS"}
    said = capsys.readouterr()
    assert "oci://adapters@axns/r: 2 files, confirmed by the service" in said.out
    assert "PRIVATE KEY" not in said.out + said.err
