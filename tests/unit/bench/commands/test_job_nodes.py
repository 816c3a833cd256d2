"""Nodes given back by a Job's pods: the real SDK against a service that verifies signatures; kills at every step.

The pods are threads over one folder. Not covered: Oracle's own services, and what OKE does with a node's pods.
"""

import base64
import contextlib
import dataclasses
import errno
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("oci", reason="Oracle's SDK is not installed: `make sdk` installs it")

from cryptography.hazmat.primitives import serialization
from oci.auth.signers import resource_principals_signer

from bench.commands import job_nodes
from bench.commands.job_nodes import JobNodes, _Kept
from bench.nodes import oke, pool
from bench.records.atomic_files import write_atomic
from bench.records.nodes import JobIdentity, JobPool, NodesRecord, NodesState
from bench.records.paths import CHECKPOINTS_FOLDER
from bench.records.result import TrialResult
from bench.records.run import PlannedTrial, TrainingJobEnd, TrainingJobSpec
from bench.records.status import TrialStatus
from tests.support.kubernetes import pki
from tests.support.machines.fake_instance import FakeInstance
from tests.support.machines.fake_tenancy import TENANCY, ApiKey, FakeTenancy, ocid, signature_error
from tests.support.machines.http_stubs import StubHandler, StubServer
from tests.support.reports.training_run import RECORD, TRIAL
from tests.unit.tasks.oci import conftest

quick_keys = conftest.quick_keys
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
POOL = f"/nodePools/{ocid('nodepool', 'pool')}"
POLICY = "Allow dynamic-group DYNAMIC-GROUP to manage cluster-node-pools in tenancy"
END = TrainingJobEnd(attempt=1, end=TrialStatus.SUCCEEDED, reason=None)
JOB = JobPool(region="eu-frankfurt-1", identity=JobIdentity.INSTANCE, gpus_per_node=1, gpus_per_pod=1, policy=POLICY)
PLAN = NodesRecord(
    run_id="r", state=NodesState.PLANNED, provider="oci", cluster={}, pool_id=ocid("nodepool", "pool"), pool="gpus",
    from_size=2, to_size=0, job=JOB,
)  # fmt: skip
ADDRESSES = ("10.99.0.11", "10.99.0.12")


class Killed(BaseException):
    """Stands for a kill of the pod: no handler of ours runs after it."""


class Watch:
    """Receiver of what the first pod notifies."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.flushed = 0

    def on_nodes(self, text: str) -> None:
        self.texts.append(text)

    def flush(self) -> None:
        self.flushed += 1


@pytest.fixture(scope="module")
def server() -> Iterator[FakeTenancy]:
    with FakeTenancy(ApiKey()) as tenancy:
        yield tenancy


@pytest.fixture(scope="module")
def machine() -> FakeInstance:
    return FakeInstance(TENANCY, signature_error)


@pytest.fixture
def tenancy(server: FakeTenancy, machine: FakeInstance, monkeypatch: pytest.MonkeyPatch) -> FakeTenancy:
    """Provide a pool of two nodes whose size changes at once, and this machine as an instance of the tenancy."""
    server.reset()
    server.instance, server.resizes = machine, True
    monkeypatch.setenv("OCI_METADATA_BASE_URL", f"{server.url}/opc/v2")
    monkeypatch.setattr(oke, "FEDERATION_ENDPOINT", f"{server.url}/v1/x509")
    monkeypatch.setattr(oke, "ENDPOINT", server.url)
    monkeypatch.setattr(oke, "MAX_PAUSE_SEC", 0.0)
    for name, seconds in {"POLL_SEC": 0.01, "RETRY_PAUSE_SEC": 0.01, "RETRY_SEC": 60.0, "ANSWER_SEC": 60.0}.items():
        monkeypatch.setattr(job_nodes, name, seconds)
    return server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Provide a run's folder on the volume after a successful training."""
    attempt, checkpoint = tmp_path / "r" / "train.1", tmp_path / "r" / CHECKPOINTS_FOLDER / "step-00000002"
    (attempt / "adapter").mkdir(parents=True)
    checkpoint.mkdir(parents=True)
    weights = attempt / "adapter" / job_nodes.WEIGHTS_FILE
    weights.write_bytes(b"weights")
    TrialResult(trial_id="train", trial=TRIAL, status=TrialStatus.SUCCEEDED, reason=None, worker="worker-0").write(
        attempt
    )
    digest = hashlib.sha256(b"weights").hexdigest()
    dataclasses.replace(RECORD, adapter_sha256=digest, adapter_files={weights.name: 7}).write(attempt)
    (checkpoint / "state.json").write_bytes(b"{}")
    manifest = {"files": {"state.json": {"sha256": hashlib.sha256(b"{}").hexdigest()}}}
    (checkpoint / "MANIFEST.json").write_text(json.dumps(manifest))
    return tmp_path / "r"


@dataclasses.dataclass
class Pods:
    """The pods of a Job of two; the second one holds its GPU in a thread."""

    folder: Path
    plan: NodesRecord = PLAN
    addresses: tuple[str, ...] = ADDRESSES
    watch: Watch = dataclasses.field(default_factory=Watch)
    stopped: threading.Event = dataclasses.field(default_factory=threading.Event)
    is_first_stopped: Callable[[], bool] = bool

    def pod(self, rank: int) -> JobNodes:
        order = TrainingJobSpec(
            run_id="r", planned=PlannedTrial(trial_id="train", trial=TRIAL), shared=str(self.folder.parent), turn=1,
            after=0, max_restarts=0, port=1, token="t", nodes=self.plan,
        )  # fmt: skip
        return JobNodes(
            order, self.plan, rank=rank, address=self.addresses[rank], folder=self.folder,
            is_stopped=self.is_first_stopped if rank == 0 else self.stopped.is_set,
            watch=self.watch if rank == 0 else None,
        )  # fmt: skip

    def finish(self, *, others: bool = True) -> bool:
        """Run the first pod to its end; the other one holds meanwhile, unless it is gone."""
        self.stopped.clear()
        other = threading.Thread(target=lambda: self.pod(1).finish(END))
        if others:
            other.start()
        try:
            return self.pod(0).finish(END)
        finally:
            self.stopped.set()
            if others:
                other.join()

    @property
    def record(self) -> NodesRecord:
        return NodesRecord.read(self.folder / "nodes.json")


@pytest.fixture
def pods(folder: Path) -> Pods:
    return Pods(folder)


def test_the_pool_shrinks_once_after_the_notification(pods: Pods, tenancy: FakeTenancy) -> None:
    assert pods.finish()
    done = pods.record
    assert (done.run_id, done.state, done.reason) == ("r", NodesState.DONE, None)
    assert None not in (done.ended_at, done.requested_at, done.finished_at, done.work_request_id)
    assert tenancy.bodies == [{"nodeConfigDetails": {"size": 0}}]
    assert ("2 -> 0" in pods.watch.texts[0], pods.watch.flushed) == (True, 1)
    rows = (pods.folder / "SHA256SUMS").read_text().splitlines()
    assert {row.partition("  ")[2] for row in rows} == {
        "checkpoints/step-00000002/state.json", "train.1/adapter/adapter_model.safetensors", "train.1/result.json",
        "train.1/training.json",
    }  # fmt: skip
    assert pods.finish()
    assert tenancy.count_requests("^PUT") == 1


def test_the_start_says_whether_the_pool_can_be_read(
    pods: Pods, tenancy: FakeTenancy, capsys: pytest.CaptureFixture[str]
) -> None:
    pods.pod(0)._check()
    assert "from 2 to 0 nodes" in capsys.readouterr().out
    tenancy.fail("^GET .*/nodePools", 404, "NotAuthorizedOrNotFound")
    pods.pod(0)._check()
    assert POLICY in pods.watch.texts[-1]
    dataclasses.replace(pods, plan=dataclasses.replace(PLAN, provider="generic")).pod(0)._check()
    assert "generic" in pods.watch.texts[-1]


def damage(path: str) -> Callable[[Pods, FakeTenancy], object]:
    return lambda pods, _: (pods.folder / path).write_text("other")


def other_pool(**changes: Any) -> Callable[[Pods, FakeTenancy], object]:
    return lambda _, tenancy: tenancy.resources.objects[POOL].update(changes)


def planned(**changes: Any) -> Callable[[Pods, FakeTenancy], object]:
    return lambda pods, _: setattr(pods, "plan", dataclasses.replace(PLAN, **changes))


NODES = [
    {"id": name, "lifecycleState": "ACTIVE", "privateIp": address}
    for name, address in zip("ab", ADDRESSES, strict=True)
]
DOUBTS: dict[str, tuple[Callable[[Pods, FakeTenancy], object], str]] = {
    "a changed adapter": (damage("train.1/adapter/adapter_model.safetensors"), "not the adapter of training.json"),
    "a damaged result": (damage("train.1/result.json"), "cannot be verified"),
    "a damaged training": (damage("train.1/training.json"), "cannot be verified"),
    "a changed checkpoint": (damage("checkpoints/step-00000002/state.json"), "differs from its manifest"),
    "a damaged manifest": (damage("checkpoints/step-00000002/MANIFEST.json"), "cannot be verified"),
    "a pool that grew": (other_pool(nodeConfigDetails={"size": 3}), "2 nodes, now 3"),
    "a pool that another user shrank": (other_pool(nodeConfigDetails={"size": 0}, nodes=[]), "2 nodes, now 0"),
    "another node in the pool": (other_pool(nodes=[NODES[0], {**NODES[1], "privateIp": "10.99.0.77"}]), "10.99.0.77"),
    "a node without an address": (other_pool(nodes=[NODES[0], {"lifecycleState": "CREATING"}]), "None"),
    "a node more": (other_pool(nodes=[*NODES, {**NODES[1], "id": "c"}]), "the nodes of the pool"),
    "two GPUs on each node": (planned(job=dataclasses.replace(JOB, gpus_per_node=2)), "1 of the 2 GPUs"),
    "a plan without the GPUs": (planned(job=None), "no node pools"),
    "two pods on one node": (lambda pods, _: setattr(pods, "addresses", ADDRESSES[:1] * 2), "the nodes of the pool"),
    "a changed etag": (lambda _, tenancy: tenancy.fail("^PUT", 412, "NoEtagMatch"), "412"),
    "a pool that is being changed": (lambda _, tenancy: tenancy.fail("^PUT", 409, "IncorrectState"), "409"),
    "no right to read": (lambda _, tenancy: tenancy.fail("^GET .*/nodePools", 404, "NotAuthorizedOrNotFound"), POLICY),
    "no right to change": (lambda _, tenancy: tenancy.fail("^PUT", 404, "NotAuthorizedOrNotFound"), POLICY),
    "no right by a condition": (lambda _, tenancy: tenancy.fail("^PUT", 403, "NotAuthorized"), POLICY),
    "no identity": (lambda _, tenancy: tenancy.fail("POST /v1/x509", 401, "NotAuthenticated"), POLICY),
    "no SDK": (lambda *_: None, "no SDK of provider oci"),
    "pods that end soon": (lambda *_: None, "holds its GPUs for less than"),
    "no answer of a pod": (lambda *_: None, "1 of the 2 pods did not answer"),
    "no service": (lambda _, tenancy: tenancy.fail("/nodePools", 503, "ServiceUnavailable"), "503"),
    "a proxy's page": (lambda _, tenancy: tenancy.fail("/nodePools", 200, html=True), "reading the node pool"),
    "no network": (lambda *_: None, "no complete response"),
}


@pytest.mark.parametrize("name", DOUBTS)
def test_nodes_are_kept_in_doubt(name: str, pods: Pods, tenancy: FakeTenancy, monkeypatch: pytest.MonkeyPatch) -> None:
    make, expected = DOUBTS[name]
    make(pods, tenancy)
    if name in ("no service", "a proxy's page", "no network"):
        monkeypatch.setattr(job_nodes, "RETRY_SEC", 0.0)
    if name == "no network":
        monkeypatch.setattr(oke, "ENDPOINT", "http://127.0.0.1:1")
    elif name == "no SDK":
        monkeypatch.setattr(pool, "MODULES", {"oci": "bench.nodes.no_such_module"})
    elif name == "pods that end soon":
        monkeypatch.setattr(job_nodes, "HOLD_SEC", 100.0)
    elif name == "no answer of a pod":
        monkeypatch.setattr(job_nodes, "ANSWER_SEC", 0.0)
    assert pods.finish(others=name != "no answer of a pod")
    assert pods.record.state is NodesState.KEPT
    assert expected in str(pods.record.reason)
    assert expected in pods.watch.texts[-1]
    assert tenancy.bodies == []
    tenancy.faults.clear()
    assert pods.finish(), "kept for good: only `inv collect` decides again"
    assert tenancy.bodies == []


@pytest.mark.parametrize(
    "fail",
    [
        lambda tenancy: tenancy.fail("^PUT", 429, "TooManyRequests", times=6),
        lambda tenancy: tenancy.fail("/nodePools", 503, "ServiceUnavailable", times=6),
        lambda tenancy: tenancy.fail("/opc/|/v1/x509", 503, "Busy", times=6),
        lambda tenancy: tenancy.fail("^GET .*/nodePools", 200, times=2, truncated=True),
        lambda tenancy: tenancy.fail("^PUT", 0, times=1, drops_response=True),
    ],
    ids=["throttled", "unavailable", "no metadata", "a cut response", "a lost response"],
)
def test_what_passes_is_tried_again(fail: Callable[[FakeTenancy], None], pods: Pods, tenancy: FakeTenancy) -> None:
    fail(tenancy)
    assert pods.finish()
    assert pods.record.state is NodesState.DONE
    assert len(tenancy.bodies) == 1


def test_a_removal_that_fails_is_told_and_left_to_collect(
    pods: Pods, tenancy: FakeTenancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    await_removal = JobNodes._await_removal

    def await_shortly(pod: JobNodes, pools: Any) -> None:
        pod._deadline = time.monotonic() + 1.0
        await_removal(pod, pools)

    monkeypatch.setattr(JobNodes, "_await_removal", await_shortly)
    tenancy.stuck = 1
    tenancy.resources.objects[POOL]["nodes"][0]["nodeError"] = {"message": "could not be drained"}
    assert pods.finish()
    assert pods.record.state is NodesState.REQUESTED
    assert [text for text in pods.watch.texts if "could not be drained" in text] == [pods.watch.texts[1]]
    assert "not gone yet" in pods.watch.texts[-1]


STEPS = ("save PLANNED", "verify", "ask", "save REQUESTED", "notify", "request", "requested", "save id", "wait",
         "save DONE")  # fmt: skip


def kill_at(step: str, patch: pytest.MonkeyPatch) -> None:
    """Kill the first pod when it comes to this step; "save" kills it after the step."""
    save, resize = JobNodes._save, oke.OkePools.resize

    def killed(*_: object, **__: object) -> None:
        raise Killed

    def killed_save(pod: JobNodes, **changes: Any) -> None:
        save(pod, **changes)
        name = "id" if "work_request_id" in changes else pod._record.state.name
        if step == f"save {name}":
            raise Killed

    def killed_resize(*arguments: Any) -> None:
        resize(*arguments)
        raise Killed

    names = {"verify": "_verify_outputs", "ask": "_ask_pods", "notify": "_report", "wait": "_await_removal"}
    patch.setattr(JobNodes, "_save", killed_save)
    if step in names:
        patch.setattr(JobNodes, names[step], killed)
    elif step in ("request", "requested"):
        patch.setattr(oke.OkePools, "resize", killed if step == "request" else killed_resize)


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_any_step_is_made_good_by_the_next_pod(
    step: str, pods: Pods, tenancy: FakeTenancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        kill_at(step, patch)
        with pytest.raises(Killed):
            pods.finish()
    assert pods.finish()
    assert pods.record.state is NodesState.DONE
    assert tenancy.resources.objects[POOL]["nodeConfigDetails"] == {"size": 0}
    assert len(tenancy.bodies) == 1


@pytest.mark.parametrize(("step", "failures", "state"), [
    ("save PLANNED", 1, NodesState.KEPT), ("ask", 1, NodesState.KEPT), ("save REQUESTED", 3, NodesState.KEPT),
    ("save id", 1, NodesState.REQUESTED),
])  # fmt: skip
@pytest.mark.usefixtures("tenancy")
def test_no_pod_holds_its_gpu_after_the_first_one_has_failed(
    step: str, failures: int, state: NodesState, pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    remaining, save = [OSError(errno.ENOSPC, "No space left on device")] * failures, JobNodes._save

    def full(*_: object, **__: object) -> None:
        raise remaining.pop()

    def save_or_fail(pod: JobNodes, **changes: Any) -> None:
        name = "id" if "work_request_id" in changes else changes.get("state", pod._record.state).name
        if remaining and (step == f"save {name}" or len(remaining) < failures):
            full()
        save(pod, **changes)

    monkeypatch.setattr(JobNodes, "_ask_pods" if step == "ask" else "_save", full if step == "ask" else save_or_fail)
    other = threading.Thread(target=lambda: pods.pod(1).finish(END))
    other.start()
    with pytest.raises(OSError, match="No space"):
        pods.pod(0).finish(END)
    if state is NodesState.REQUESTED:  # it is stopped with its node
        pods.stopped.set()
    other.join(60.0)
    assert not other.is_alive()
    assert pods.record.state is state


def test_a_stopped_pod_is_replaced_before_the_request_and_not_after(pods: Pods, tenancy: FakeTenancy) -> None:
    pods.is_first_stopped = lambda: True
    assert not pods.finish()
    states = [pods.record.state]
    tenancy.resizes = False  # its nodes go when this pod has gone
    pods.is_first_stopped = lambda: bool(tenancy.bodies)
    assert pods.finish()
    assert [*states, pods.record.state] == [NodesState.PLANNED, NodesState.REQUESTED]


def test_a_damaged_record_keeps_the_nodes(pods: Pods, tenancy: FakeTenancy) -> None:
    (pods.folder / "nodes.json").write_text("{")
    assert pods.finish()
    assert tenancy.requests == []


def test_a_pod_answers_only_the_current_question(pods: Pods, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_nodes, "ANSWER_SEC", 0.0)
    write_atomic(
        pods.folder / "held-1.1.json", b'{"question": "an earlier one", "address": "10.99.0.12", "left_sec": 900}'
    )
    with pytest.raises(_Kept, match="1 of the 2 pods"):
        pods.pod(0)._ask_pods()


class ProxyMux(StubHandler):
    """OKE's token service for pods, at the API server's address: a service account's token for a session's token."""

    def do_POST(self) -> None:
        server: Any = self.server
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.headers["Authorization"] != "Bearer account-token":
            self.reply(401)
            return
        key = serialization.load_pem_public_key(
            b"-----BEGIN PUBLIC KEY-----\n" + request["podKey"].encode() + b"\n-----END PUBLIC KEY-----\n"
        )
        claims = {"iat": int(time.time()), "exp": int(time.time()) + 1200}
        parts = ({"alg": "RS256", "typ": "JWT"}, claims)
        token = ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
        server.machine.sessions[f"ST${token}.c2lnbmVk"] = key, time.time() + 1200
        self.reply(200, base64.b64encode(json.dumps({"token": f"ST${token}.c2lnbmVk"}).encode()))


def test_a_workload_signs_with_the_token_for_its_service_account(
    pods: Pods, tenancy: FakeTenancy, machine: FakeInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, tls = pki.make(tmp_path)
    (tmp_path / "token").write_text("account-token")
    tenancy.fail("/opc/|/v1/x509", 404)  # not as the instance
    with StubServer(ProxyMux) as proxy, contextlib.suppress(ValueError):
        proxy.machine = machine  # type: ignore[attr-defined]
        proxy.socket = tls.wrap_socket(proxy.socket, server_side=True)
        host, _, port = proxy.host.partition(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("OCI_KUBERNETES_SERVICE_ACCOUNT_CERT_PATH", str(authority))
        for name in ("OCI_RESOURCE_PRINCIPAL_VERSION", "OCI_RESOURCE_PRINCIPAL_REGION"):
            monkeypatch.setenv(name, "")  # restored afterwards
        monkeypatch.setattr(resource_principals_signer, "OCI_KUBERNETES_PROXYMUX_SERVICE_PORT", port)
        provider = resource_principals_signer.DefaultServiceAccountTokenProvider
        monkeypatch.setattr(provider, "get_sa_token", lambda _: "account-token")
        pods.plan = dataclasses.replace(PLAN, job=dataclasses.replace(JOB, identity=JobIdentity.WORKLOAD))
        assert pods.finish()
    assert pods.record.state is NodesState.DONE
    assert tenancy.count_requests("^PUT") == 1
