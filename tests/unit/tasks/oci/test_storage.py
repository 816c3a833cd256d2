"""`inv adapter.push --bucket`: the real SDK against a fake Object Storage that verifies each signature.

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
from tasks.oci import buckets as storage
from tasks.oci import clients
from tasks.oci.buckets import parse_address, push
from tasks.settings.load import Settings
from tests.support.kubernetes import pki
from tests.support.machines.fake_buckets import Buckets
from tests.support.machines.fake_tenancy import ApiKey, FakeTenancy
from tests.support.reports.training_run import RECORD, write_run_with_adapter

FILES = {
    "README.md": b"# card",
    "adapter_config.json": b"{}",
    "adapter_model.safetensors": bytes(range(250)) * 10,
    "empty": b"",
}
ADDRESS = "oci://adapters@axns/team/one"
Make = Callable[..., Settings]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pushing:
    """A folder with FILES, the third of which is uploaded in three parts, and the target bucket."""

    tenancy: FakeTenancy
    settings: Settings
    folder: Path

    @property
    def stored(self) -> dict[str, bytes]:
        return self.tenancy.resources.buckets.objects["adapters"]

    def push(self, address: str = ADDRESS) -> list[str]:
        """Push FILES and return the logged lines."""
        lines: list[str] = []
        self.tenancy.requests.clear()
        push(self.settings, address, "r", {name: self.folder / name for name in FILES}, lines.append)
        return lines


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
    lines = pushing.push()
    assert pushing.tenancy.count_requests("^(PUT|POST)") == 0
    assert len(lines) == len(FILES) + 1
    assert not any(line.endswith(": sent") for line in lines)


@pytest.mark.parametrize(
    ("moment", "left"),
    [("PUT .*README", 9), ("POST .*/u$", 7), ("uploadPartNum=3", 4), ("POST .*uploadId", 3), ("PUT .*SUMS", 1)],
)
def test_a_push_that_failed_at_any_point_is_incomplete_and_resumes(pushing: Pushing, moment: str, left: int) -> None:
    pushing.tenancy.fail(moment, 503, "ServiceUnavailable")
    with pytest.raises(RetryableError, match="503 ServiceUnavailable"):
        pushing.push()
    assert "team/one/SHA256SUMS" not in pushing.stored
    pushing.tenancy.faults.clear()
    pushing.push()
    assert pushing.tenancy.count_requests("^(PUT|POST)") == left
    assert pushing.stored.keys() == {f"team/one/{name}" for name in (*FILES, "SHA256SUMS")}
    assert pushing.stored["team/one/adapter_model.safetensors"] == FILES["adapter_model.safetensors"]


@pytest.mark.parametrize("fault", [{"status": 500}, {"status": 200, "drops_response": True}])
def test_a_temporary_failure_is_retried_with_the_same_bytes(pushing: Pushing, fault: dict[str, int]) -> None:
    for pattern in ("PUT .*README", "PUT .*uploadPartNum=2", "HEAD .*config", "GET .*/o[?]"):
        pushing.tenancy.fail(pattern, **fault, times=1)  # type: ignore[arg-type]
    pushing.push()
    pushing.push()
    assert pushing.stored["team/one/adapter_model.safetensors"] == FILES["adapter_model.safetensors"]


def test_a_corrupted_object_is_reported_and_uploaded_again(pushing: Pushing) -> None:
    pushing.tenancy.resources.buckets.corrupted = {"team/one/README.md"}
    with pytest.raises(ConfirmationRequired, match=r"'team/one/README.md'"):
        pushing.push()
    pushing.tenancy.resources.buckets.corrupted = set()
    pushing.push()
    assert pushing.tenancy.count_requests("^PUT") == 1
    assert pushing.stored["team/one/README.md"] == FILES["README.md"]


def test_a_prefix_with_other_objects_is_not_changed(pushing: Pushing) -> None:
    stored = pushing.stored
    stored |= {"team/one/": b"", "team/one/notes.txt": b"mine", "team/onemore": b"not below it"}
    with pytest.raises(UsageError, match=r"--bucket: team/one/ .*'team/one/notes.txt'; "):
        pushing.push()
    del stored["team/one/notes.txt"]
    pushing.push()
    before = dict(stored)
    (pushing.folder / "README.md").write_bytes(b"# another card")
    with pytest.raises(UsageError, match=r"--bucket: team/one/ .*SHA256SUMS; "):
        pushing.push()
    assert pushing.tenancy.count_requests("^(PUT|POST)") == 0
    assert stored == before


def test_a_file_that_changes_while_it_is_sent_is_refused_by_the_service(
    pushing: Pushing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_body", lambda content: content + b"!")
    with pytest.raises(UsageError, match=r"sending team/one/README.md: 400 UnmatchedContentMD5"):
        pushing.push()
    assert not pushing.stored


@pytest.mark.parametrize(
    ("address", "fault", "error", "expected"),
    [
        ("adapters", None, UsageError, "expected oci://BUCKET@NAMESPACE/PREFIX, found 'adapters'"),
        ("oci://adapters@axns/a//b", None, UsageError, "expected oci://BUCKET"),
        ("oci://none@axns/a", None, UsageError, "listing bucket none of namespace axns in eu-frankfurt-1: 404 Buck"),
        ("oci://none/a", None, UsageError, "to manage objects in tenancy where target.bucket.name='none'"),
        ("oci://adapters@other/a", None, UsageError, "namespace, which is axns"),
        (
            ADDRESS,
            (403, "NotAllowed"),
            UsageError,
            "Allow group GROUP to manage objects in tenancy where target.bucket",
        ),
    ],
)
def test_a_push_that_cannot_start_is_one_line_with_a_remedy(
    pushing: Pushing, address: str, fault: tuple[int, str] | None, error: type[TaskFailed], expected: str
) -> None:
    if fault is not None:
        pushing.tenancy.fail("GET .*/o[?]", *fault)
    with pytest.raises(error, match=re.escape(expected)):
        pushing.push(address)
    assert pushing.tenancy.count_requests("^(PUT|POST)") == 0


@pytest.mark.parametrize(
    ("method", "response"),
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
def test_malformed_objects_are_one_line(
    pushing: Pushing, monkeypatch: pytest.MonkeyPatch, method: str, response: object
) -> None:
    monkeypatch.setattr(Buckets, method, lambda *_: (200, json.dumps(response).encode(), {}))
    with pytest.raises(RetryableError, match="; is a proxy intercepting"):
        pushing.push()


def test_a_part_that_is_confirmed_without_a_tag_is_one_line(pushing: Pushing, monkeypatch: pytest.MonkeyPatch) -> None:
    def untagged(_: Buckets, *arguments: Any) -> tuple[int, bytes, dict[str, str]]:
        md5 = hashlib.md5(arguments[3], usedforsecurity=False).digest()
        return 200, b"", {"opc-content-md5": base64.b64encode(md5).decode()}

    monkeypatch.setattr(Buckets, "_put_upload", untagged)
    with pytest.raises(RetryableError, match=r"^sending team/one/adapter_model.safetensors: "):
        pushing.push()


def test_over_tls_the_sdk_waits_for_100_continue_and_sends_the_same_bytes(
    keys: ApiKey, pushing: Pushing, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Cover the SDK's own connection class for `Expect: 100-continue`, which it uses only over TLS."""
    authority, context = pki.make(tmp_path_factory.mktemp("pki"))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority))
    with FakeTenancy(keys, tls=context) as server:
        monkeypatch.setattr(clients, "ENDPOINT", server.url)
        server.resources = pushing.tenancy.resources
        server.fail("PUT .*uploadPartNum=2", 503, "ServiceUnavailable", times=1)
        pushing.push()
        assert server.count_requests("PUT .*uploadPartNum=2") == 2
    assert all(pushing.stored[f"team/one/{name}"] == content for name, content in FILES.items())


def test_a_permission_that_only_large_files_need_is_reported(pushing: Pushing) -> None:
    pushing.tenancy.fail("GET .*/u[?]?$", 404, "BucketNotFound")
    with pytest.raises(UsageError, match=r"Allow group GROUP to read buckets in tenancy where target.bucket.name="):
        pushing.push()


def test_the_default_prefix_is_the_run_s_name() -> None:
    address = parse_address("oci://adapters/", "20261122-train")
    assert (address.bucket, address.namespace, address.object_name("README.md")) == (
        "adapters",
        None,
        "20261122-train/README.md",
    )


def test_the_command_records_the_adapter_s_address(
    tenancy: FakeTenancy, project: Path, context: Callable[..., Context], capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run_with_adapter(project / "results" / "20261122-000000-train")
    digest = hashlib.sha256(b"weights").hexdigest()
    dataclasses.replace(RECORD, adapter_sha256=digest).write(run)
    with pytest.raises(UsageError, match=r"--folder=DIR, --oci=HOST/REPOSITORY:TAG and --bucket=oci://"):
        push_adapter(context(), None, folder="here", oci=None, bucket=ADDRESS, merged=False)
    with pytest.raises(UsageError, match=r"; type: --bucket=oci://adapters@axns/team/one"):
        push_adapter(context(), None, folder=None, oci=ADDRESS, bucket=None, merged=False)
    push_adapter(context(), None, folder=None, oci=None, bucket="oci://adapters", merged=False)
    record = json.loads((run / "adapter-push.json").read_text())
    assert record["place"] == "oci://adapters@axns/r"
    assert record["sha256"]["adapter_model.safetensors"] == digest
    stored = tenancy.resources.buckets.objects["adapters"]
    assert stored.keys() == {"r/README.md", "r/adapter_model.safetensors", "r/SHA256SUMS"}
    output = capsys.readouterr()
    assert "oci://adapters@axns/r: 2 files" in output.out
    assert "PRIVATE KEY" not in output.out + output.err
