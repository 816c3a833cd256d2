"""`inv adapter.push --bucket` with the real SDK against a stand-in of Object Storage that verifies each signature.

Not covered: a real bucket.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("oci", reason="Oracle's SDK is not installed: `make sdk` installs it")

from invoke import Context

from tasks.adapter.push import push_adapter
from tasks.errors import Refused, Resumable, TaskFailed, UsageError
from tasks.settings.load import Settings
from tasks.tenancy.access import clients
from tasks.tenancy.storage import bucket as storage
from tasks.tenancy.storage.push import place_of, push
from tests.support.kubernetes import pki
from tests.support.machines.fake_tenancy import FakeTenancy, Keys
from tests.support.reports.training_run import RECORD, a_run

FILES = {
    "README.md": b"# card",
    "adapter_config.json": b"{}",
    "adapter_model.safetensors": bytes(range(250)) * 10,
    "empty": b"",
}
PLACE = "oci://adapters@axns/team/one"
Make = Callable[..., Settings]
Push = Callable[..., list[str]]


@pytest.fixture
def stored(tenancy: FakeTenancy) -> dict[str, bytes]:
    """What the bucket holds."""
    return tenancy.world.buckets.objects["adapters"]


@pytest.fixture
def pushed(
    tenancy: FakeTenancy, settings: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[str]]:
    """Pushes FILES, of which the third goes up in three parts; what was said."""
    monkeypatch.setattr(storage, "PART_BYTES", 1000)
    given = settings()
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)

    def act(place: str = PLACE, **settings: Settings) -> list[str]:
        said: list[str] = []
        tenancy.requests.clear()
        push(settings.get("settings", given), place, "r", {name: tmp_path / name for name in FILES}, said.append)
        return said

    return act


def test_every_file_is_in_the_bucket_and_the_sums_are_sent_last(
    tenancy: FakeTenancy, stored: dict[str, bytes], pushed: Push
) -> None:
    pushed()
    sums = stored.pop("team/one/SHA256SUMS").decode()
    assert stored == {f"team/one/{name}": content for name, content in FILES.items()}
    assert sums == "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in FILES.items())
    sent = [one for one in tenancy.requests if one.startswith(("PUT", "POST"))]
    assert "SHA256SUMS" in sent[-1]


def test_a_second_push_of_the_same_sends_nothing(tenancy: FakeTenancy, pushed: Push) -> None:
    pushed()
    said = pushed()
    assert tenancy.asked("^(PUT|POST)") == 0
    assert all(line.endswith("is there already") for line in said)
    assert len(said) == len(FILES) + 1


@pytest.mark.parametrize(
    ("moment", "left"),
    [("PUT .*README", 9), ("POST .*/u$", 7), ("uploadPartNum=3", 4), ("POST .*uploadId", 3), ("PUT .*SUMS", 1)],
)
def test_a_push_that_ended_anywhere_looks_unfinished_and_goes_on(
    tenancy: FakeTenancy, stored: dict[str, bytes], pushed: Push, moment: str, left: int
) -> None:
    tenancy.fail(moment, 503, "ServiceUnavailable")
    with pytest.raises(Resumable, match="asked several times"):
        pushed()
    assert "team/one/SHA256SUMS" not in stored
    tenancy.faults.clear()
    pushed()
    assert tenancy.asked("^(PUT|POST)") == left
    assert stored.keys() == {f"team/one/{name}" for name in (*FILES, "SHA256SUMS")}
    assert stored["team/one/adapter_model.safetensors"] == FILES["adapter_model.safetensors"]


@pytest.mark.parametrize("fault", [{"status": 429}, {"status": 500}, {"status": 200, "lost": True}])
def test_what_passes_is_asked_again_with_the_same_bytes(
    tenancy: FakeTenancy, stored: dict[str, bytes], pushed: Push, fault: dict[str, int]
) -> None:
    for pattern in ("PUT .*README", "PUT .*uploadPartNum=2", "HEAD .*config", "GET .*/o[?]"):
        tenancy.fail(pattern, **fault, times=1)  # type: ignore[arg-type]
    pushed()
    pushed()
    assert stored["team/one/adapter_model.safetensors"] == FILES["adapter_model.safetensors"]


def test_what_is_not_there_as_it_was_sent_is_named_and_sent_again(
    tenancy: FakeTenancy, stored: dict[str, bytes], pushed: Push
) -> None:
    tenancy.world.buckets.rots = {"team/one/README.md"}
    with pytest.raises(Refused, match=r"'team/one/README.md' is not in the bucket as it was sent"):
        pushed()
    tenancy.world.buckets.rots = set()
    pushed()
    assert tenancy.asked("^PUT") == 1
    assert stored["team/one/README.md"] == FILES["README.md"]


def test_a_place_with_anything_else_in_it_stays_as_it_is(
    tenancy: FakeTenancy, stored: dict[str, bytes], pushed: Push, tmp_path: Path
) -> None:
    stored |= {"team/one/": b"", "team/one/notes.txt": b"mine", "team/onemore": b"not below it"}
    with pytest.raises(UsageError, match=r"holds other objects, such as 'team/one/notes.txt'; name another prefix"):
        pushed()
    del stored["team/one/notes.txt"]
    pushed()
    before = dict(stored)
    (tmp_path / "README.md").write_bytes(b"# another card")
    with pytest.raises(UsageError, match="holds another version, by its SHA256SUMS"):
        pushed()
    assert tenancy.asked("^(PUT|POST)") == 0
    assert stored == before


def test_a_file_that_changes_while_it_is_sent_is_refused_by_the_service(
    stored: dict[str, bytes], pushed: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_body", lambda content: content + b"!")
    with pytest.raises(UsageError, match=r"sending team/one/README.md: 400 UnmatchedContentMD5"):
        pushed()
    assert not stored


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
        (PLACE, (429, "TooManyRequests"), Resumable, "the same again later"),
        (PLACE, (503, "ServiceUnavailable"), Resumable, "the same again later"),
    ],
)
def test_what_cannot_be_pushed_is_one_line_that_says_what_to_do(
    tenancy: FakeTenancy,
    pushed: Push,
    place: str,
    fault: tuple[int, str] | None,
    error: type[TaskFailed],
    said: str,
) -> None:
    if fault is not None:
        tenancy.fail("GET .*/o[?]", *fault)
    with pytest.raises(error) as raised:
        pushed(place)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert tenancy.asked("^(PUT|POST)") == 0


def test_answers_that_are_none_and_a_service_that_is_away_can_be_tried_again(
    tenancy: FakeTenancy, pushed: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    for how in ({"html": True}, {"cut": True}):
        tenancy.fail("GET .*/o[?]", 200, **how)
        with pytest.raises(Resumable, match=r"the same again|is a proxy between"):
            pushed()
        tenancy.faults.clear()
    monkeypatch.setattr(clients, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(Resumable, match="no whole answer from eu-frankfurt-1"):
        pushed()


def test_over_tls_the_sdk_waits_to_be_told_to_go_on_and_sends_the_same(
    keys: Keys,
    tenancy: FakeTenancy,
    pushed: Push,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Only there: `Expect: 100-continue` has a connection of the SDK's own."""
    authority, context = pki.make(tmp_path_factory.mktemp("pki"))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority))
    with FakeTenancy(keys, tls=context) as server:
        monkeypatch.setattr(clients, "ENDPOINT", server.url)
        server.world = tenancy.world
        server.fail("PUT .*uploadPartNum=2", 503, "ServiceUnavailable", times=1)
        pushed()
        assert server.asked("PUT .*uploadPartNum=2") == 2
    stored = tenancy.world.buckets.objects["adapters"]
    assert all(stored[f"team/one/{name}"] == content for name, content in FILES.items())


def test_a_right_that_only_large_files_need_is_named(tenancy: FakeTenancy, pushed: Push) -> None:
    tenancy.fail("GET .*/u[?]?$", 404, "BucketNotFound")
    with pytest.raises(UsageError, match=r"Allow group GROUP to read buckets in tenancy where target.bucket.name="):
        pushed()


def test_without_a_prefix_files_go_below_the_runs_own_name() -> None:
    place = place_of("oci://adapters/", "20261122-train")
    assert (place.bucket, place.namespace, place.name("README.md")) == ("adapters", None, "20261122-train/README.md")


def test_the_command_notes_where_the_adapter_is(
    stored: dict[str, bytes], project: Path, context: Callable[..., Context], capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run(project / "results" / "20261122-000000-train")
    (run / "adapter").mkdir()
    (run / "adapter" / "adapter_model.safetensors").write_bytes(b"weights")
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
    assert stored.keys() == {"r/README.md", "r/adapter_model.safetensors", "r/SHA256SUMS"}
    said = capsys.readouterr()
    assert "oci://adapters@axns/r: 2 files, confirmed by the service" in said.out
    assert "PRIVATE KEY" not in said.out + said.err
