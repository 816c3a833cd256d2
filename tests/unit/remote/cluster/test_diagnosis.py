"""Tests of the diagnosis: every recorded problem of a pod, a Job or a claim has its own cause and a remedy.

The messages in data/kubernetes_events.json are those of a real cluster (Kubernetes 1.34, containerd 1.6); the tests
make the pods.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from remote.cluster.diagnosis.finding import Diagnosis, grouped_lines
from remote.cluster.diagnosis.pods import diagnose_claim, diagnose_job, diagnose_pod, explain_scheduling, is_ready

RECORDED_SCENARIOS = json.loads((Path(__file__).parent / "data" / "kubernetes_events.json").read_text())
UID = "0000-1111"


def pod(scenario: dict[str, Any], *, secrets: tuple[str, ...] = ("ocir-secret",)) -> dict[str, Any]:
    recorded = scenario["pod_status"] or {}
    image = re.search(r'(?:pull image|pulling image|tag|Container image) \\\\*"([^"\\]+)\\*"', json.dumps(scenario))
    status: dict[str, Any] = {key: recorded[key] for key in ("phase", "reason", "message") if key in recorded}
    unscheduled = [event["message"] for event in scenario["events"] if event["reason"] == "FailedScheduling"]
    if unscheduled and recorded.get("phase") == "Pending":
        status["conditions"] = [{"type": "PodScheduled", "status": "False", "message": unscheduled[-1]}]
    if state := recorded.get("containerState"):
        last = recorded.get("containerLastState") or {}
        container = {"name": "main", "state": state, "lastState": last, "restartCount": 2 if last else 0}
        status["containerStatuses"] = [container]
    spec: dict[str, Any] = {
        "nodeName": "node-2",
        "containers": [{"name": "main", "image": image[1] if image else "registry.example.com/team/qlora-bench:1.0"}],
    }
    if secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in secrets]
    return {"metadata": {"name": "p", "uid": UID}, "spec": spec, "status": status}


def events(scenario: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "involvedObject": {"kind": event["kind"], "name": "p", "uid": UID},
            "reason": event["reason"],
            "message": event["message"],
            "lastTimestamp": event["at"],
        }
        for event in scenario["events"]
    ]


def job(status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "uid": UID},
        "spec": {"parallelism": 4, **spec},
        "status": status or {"active": 1},
    }


def diagnose_recorded(topic: str, name: str, **changes: Any) -> list[Diagnosis]:
    scenario = RECORDED_SCENARIOS[topic][name]
    if topic in ("quota", "pod-security"):
        return diagnose_job(job(), events(scenario))
    if topic == "volume-claims":
        claim = {"metadata": {"name": "p", "uid": UID}, "status": {"phase": "Pending"}}
        return diagnose_claim(claim, events(scenario))
    return diagnose_pod(pod(scenario, **changes), events(scenario))


# Cause of every recorded scenario in which a pod, a Job or a claim is not ready.
RECORDED_CAUSES = {
    "image-pull": {
        "unauthorized": "pull-basic-401-no-secret pull-basic-401-wrong-password",
        "connection-refused": "pull-connection-refused",
        "not-found": "pull-digest-not-found pull-repository-not-found pull-tag-not-found pull-token-404-tag-not-found",
        "plain-http": "pull-http-answer-to-https",
        "invalid-name": "pull-invalid-image-name",
        "name-not-resolved": "pull-name-not-resolved",
        "no-route": "pull-no-route",
        "never-pull": "pull-policy-never",
        "secret-missing": "pull-secret-object-missing pull-token-403-secret-for-other-host",
        "timeout": "pull-timeout",
        "wrong-login": "pull-token-401-wrong-user-form",
        "forbidden": "pull-token-403-no-secret",
        "unknown-authority": "pull-x509-unknown-ca",
        "certificate-name": "pull-x509-wrong-name",
    },
    "scheduling": {
        "one-per-node": "sched-anti-affinity-4",
        "no-cpu": "sched-cpu",
        "no-gpu": "sched-device-plugin-missing sched-no-gpu-left",
        "no-ephemeral-storage": "sched-ephemeral-storage",
        "no-memory": "sched-memory",
        "instance-type": "sched-node-affinity-mismatch sched-node-selector-mismatch",
        "taint": "sched-taint-not-tolerated",
    },
    "mounts-and-environment": {
        "configmap-missing": "env-configmap-missing mount-configmap-missing",
        "key-missing": "env-secret-key-missing mount-configmap-key-missing",
        "csi-driver-missing": "mount-csi-attach-no-driver mount-fss-csi-not-installed",
        "hostpath": "mount-hostpath-wrong-type",
        "nfs": "mount-nfs-unreachable",
        "secret-missing": "mount-secret-missing",
    },
    "containers": {
        "command-missing": "command-not-found",
        "crash": "crash-loop failed-exit-3",
        "liveness": "liveness-failing",
        "out-of-memory": "oom-killed oom-killed-restarting",
        "not-ready": "readiness-failing readiness-tcp-failing",
        "runs-as-root": "run-as-nonroot-image-is-root",
    },
    "eviction-and-deadline": {"deadline": "deadline-exceeded", "evicted": "evicted-emptydir evicted-ephemeral"},
    "quota": {"quota": "job-quota"},
    "pod-security": {"pod-security": "job-restricted warned"},
    "volume-claims": {
        "class-missing": "pending-class-missing",
        "provisioner-silent": "pending-external-provisioner",
        "first-consumer": "pending-first-consumer",
        "no-volume": "pending-no-class pending-no-default",
    },
}
CASES = [
    (topic, name, cause)
    for topic, causes in RECORDED_CAUSES.items()
    for cause, names in causes.items()
    for name in names.split()
]
SCHEDULING = [(name, cause) for topic, name, cause in CASES if topic == "scheduling"]


@pytest.mark.parametrize(("topic", "name", "cause"), CASES)
def test_every_recorded_scenario_has_its_cause(topic: str, name: str, cause: str) -> None:
    (finding,) = diagnose_recorded(topic, name)
    assert finding.cause == cause
    assert finding.remedy
    assert finding.subject == {"volume-claims": "claim p", "quota": "job p", "pod-security": "job p"}.get(
        topic, "pod p"
    )
    if finding.subject == "job p":
        assert "is forbidden" in finding.reason
    if topic == "image-pull":
        assert "\n" not in str(finding)
        assert any(part in finding.reason for part in ("example", "ocir", "10.99")), "names the image"
    if topic == "scheduling":
        assert "4 nodes" in finding.reason


def test_every_recorded_pull_that_fails_is_in_the_table() -> None:
    assert set(RECORDED_SCENARIOS["image-pull"]) == {name for topic, name, _ in CASES if topic == "image-pull"}


@pytest.mark.parametrize("name", ["pull-basic-401-no-secret", "pull-token-403-no-secret"])
def test_a_pod_without_any_pull_secret_is_told_so(name: str) -> None:
    (finding,) = diagnose_recorded("image-pull", name, secrets=())
    assert finding.cause == "no-secret"
    assert "cluster.pull_secret" in finding.remedy


def test_an_older_kubelet_that_says_only_back_off_is_explained_by_its_events() -> None:
    scenario = RECORDED_SCENARIOS["image-pull"]["pull-x509-unknown-ca"]
    backing_off = pod(scenario)
    waiting = backing_off["status"]["containerStatuses"][0]["state"]["waiting"]
    waiting["message"] = 'Back-off pulling image "registry.internal.example.com/team/qlora-bench:1.0"'
    (finding,) = diagnose_pod(backing_off, events(scenario))
    assert finding.cause == "unknown-authority"


NOT_RECORDED = {
    "too-many-requests": "failed to copy: httpReadSeeker: failed open: unexpected status code 429 Too Many Requests",
    "disk-full": "failed to extract layer sha256:1: write /var/lib: no space left on device",
    "wrong-architecture": "failed to pull and unpack image: no match for platform in manifest: not found",
    "broken-off": "failed to pull: failed to copy: read tcp: connection reset by peer",
    "name-not-resolved": 'failed to pull and unpack image "fra.ocir.io/a": failed to do request: '
    'Head "https://fra.ocir.io/v2": dial tcp: lookup fra.ocir.io on 10.0.0.2:53: read udp 10.77.0.11: i/o timeout',
    "pull": "failed to pull: something unknown",
}


@pytest.mark.parametrize(("cause", "text"), NOT_RECORDED.items())
def test_a_pull_error_that_was_not_recorded_has_a_finding(cause: str, text: str) -> None:
    state = {"waiting": {"reason": "ErrImagePull", "message": text}}
    (finding,) = diagnose_pod(pod({"pod_status": {"phase": "Pending", "containerState": state}, "events": []}), [])
    assert finding.cause == cause
    if cause == "pull":
        assert text in finding.reason


@pytest.mark.parametrize(("name", "cause"), SCHEDULING)
def test_a_cordoned_node_is_reported_in_addition(name: str, cause: str) -> None:
    scenario = RECORDED_SCENARIOS["scheduling-one-node-cordoned"][name]
    message = next(event["message"] for event in scenario["events"] if event["reason"] == "FailedScheduling")
    assert [finding.cause for finding in explain_scheduling(message)] == [cause, "cordoned"]


@pytest.mark.parametrize(
    ("message", "causes"),
    [
        ("0/4 nodes are available: 4 node(s) had untolerated taint {nvidia.com/gpu: present}.", ["taint"]),
        (
            "0/6 nodes are available: 2 Insufficient nvidia.com/gpu, 4 node(s) had volume node affinity conflict.",
            ["volume-elsewhere", "no-gpu"],
        ),
        ("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.", ["claim-unbound"]),
        ('persistentvolumeclaim "shared" not found', ["claim-missing"]),
        ('0/4 nodes are available: persistentvolumeclaim "shared" not found. preemption: 0/4 nodes', ["claim-missing"]),
        ("0/4 nodes are available: 4 node(s) had something unknown.", ["unschedulable"]),
        ("", ["unschedulable"]),
        ("no nodes available to schedule pods", ["unschedulable"]),
    ],
)
def test_other_messages_of_the_scheduler_are_explained_or_passed_on(message: str, causes: list[str]) -> None:
    assert [finding.cause for finding in explain_scheduling(message)] == causes


NO_ADDRESS = 'failed to setup network for sandbox "ab": plugin type="bridge" failed (add): no IP addresses available'
NO_SHIM = "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed"


@pytest.mark.parametrize(("error", "part"), [(NO_ADDRESS, "network plugin"), (NO_SHIM, "container runtime")])
def test_a_sandbox_that_is_not_made_says_which_part_of_the_node_fails(error: str, part: str) -> None:
    message = f"Failed to create pod sandbox: rpc error: code = Unknown desc = {error}"
    event = {"kind": "Pod", "reason": "FailedCreatePodSandBox", "message": message, "at": "2026-01-01T00:00:00Z"}
    scenario = {"pod_status": {"phase": "Pending"}, "events": [event]}
    (finding,) = diagnose_pod(pod(scenario), events(scenario))
    assert finding.cause == "sandbox"
    assert part in finding.remedy


@pytest.mark.parametrize("name", ["succeeded", "running", "init-running", "oom-child-killed"])
def test_a_healthy_or_starting_pod_has_no_finding(name: str) -> None:
    assert diagnose_recorded("containers", name) == []


def test_a_pod_that_is_being_deleted_says_so_and_is_not_ready() -> None:
    deleted_pod = pod(RECORDED_SCENARIOS["containers"]["terminating"])
    deleted_pod["metadata"]["deletionTimestamp"] = "2026-11-20T20:00:00Z"
    deleted_pod["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    assert not is_ready(deleted_pod)
    (finding,) = diagnose_pod(deleted_pod, [])
    assert (finding.cause, finding.patience_sec) == ("terminating", None)


def test_a_pod_on_a_silent_node_is_told_from_one_whose_probe_fails() -> None:
    running = {"phase": "Running", "containerState": {"running": {}}}
    scenario = {
        "pod_status": running,
        "events": RECORDED_SCENARIOS["nodes-and-taint-eviction"]["job-30-0-s49dl"]["events"],
    }
    (finding,) = diagnose_pod(pod(scenario), events(scenario))
    assert finding.cause == "node-not-ready"


def test_a_quota_on_limits_that_are_not_set_names_the_setting() -> None:
    # The message is that of a real quota; it is not in the recorded scenarios.
    message = 'Error creating: pods "bench-0-x" is forbidden: failed quota: cpu: must specify limits.cpu for: bench'
    event = {"involvedObject": {"name": "bench"}, "reason": "FailedCreate", "message": message, "metadata": {}}
    job = {"metadata": {"name": "bench"}, "spec": {"parallelism": 1}, "status": {}}
    (finding,) = diagnose_job(job, [event])
    assert (finding.cause, "set cluster.cpu_limit" in finding.remedy) == ("quota-limit", True)


def test_a_quota_that_has_room_again_is_no_finding() -> None:
    assert diagnose_job(job({"active": 4}), events(RECORDED_SCENARIOS["quota"]["job-quota"])) == []


@pytest.mark.parametrize("reason", ["BackoffLimitExceeded", "FailedIndexes", "DeadlineExceeded", "PodFailurePolicy"])
def test_a_job_that_failed_says_why(reason: str) -> None:
    condition = {"type": "Failed", "status": "True", "reason": reason, "message": "recorded message"}
    (finding,) = diagnose_job(job({"conditions": [condition]}), [])
    cause = "deadline" if reason == "DeadlineExceeded" else "job-failed"
    assert (finding.cause, finding.reason) == (cause, "recorded message")


def test_a_suspended_job_waits_for_its_queue() -> None:
    (finding,) = diagnose_job(job({}, suspend=True), [])
    assert (finding.cause, finding.patience_sec) == ("suspended", None)


def test_events_of_an_earlier_pod_of_the_same_name_do_not_count() -> None:
    scenario = RECORDED_SCENARIOS["mounts-and-environment"]["mount-nfs-unreachable"]
    foreign_events = events(scenario)
    for event in foreign_events:
        event["involvedObject"]["uid"] = "another"
    assert diagnose_pod(pod(scenario), foreign_events) == []


def make_finding(subject: str, reason: str = "refused") -> Diagnosis:
    return Diagnosis(subject=subject, cause="c", reason=reason, remedy="fix it")


def test_equal_findings_of_several_pods_are_one_line() -> None:
    pods = [make_finding(f"pod p-{number}") for number in range(4)]
    assert grouped_lines(pods[:1]) == ["pod p-0: refused; fix it"]
    assert grouped_lines([*pods[:2], make_finding("pod q", "full"), *pods[2:]]) == [
        "pods p-0, p-1, p-2 and p-3: refused; fix it",
        "pod q: full; fix it",
    ]
    assert grouped_lines([make_finding("job a"), make_finding("pod b")]) == ["job a, pod b: refused; fix it"]
    many = grouped_lines(make_finding(f"pod p-{number}") for number in range(64))
    assert many == ["pods p-0, p-1, p-2, p-3, p-4, p-5, p-6 and 57 more: refused; fix it"]


def test_a_server_that_loads_its_model_is_waited_for_as_long_as_its_startup_probe_does() -> None:
    running = {"metadata": {"name": "p", "uid": UID}, "spec": {}, "status": {"phase": "Running"}}
    for message, patience_sec in (("Startup probe failed: refused", None), ("Readiness probe failed: refused", 120.0)):
        event = {"involvedObject": {"name": "p", "uid": UID}, "reason": "Unhealthy", "message": message}
        (finding,) = diagnose_pod(running, [event])
        assert (finding.cause, finding.patience_sec) == ("not-ready", patience_sec)


def test_a_server_that_failed_is_served_again_and_its_first_container_has_a_log_of_its_own() -> None:
    failed = job({"conditions": [{"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": "m"}]})
    failed["metadata"]["name"] = "serve"
    assert "`inv serve`" in str(diagnose_job(failed, [])[0])
    ended = {"name": "adapter", "state": {"terminated": {"exitCode": 4}}}
    crashed = {
        "metadata": {"name": "p", "uid": UID}, "spec": {},
        "status": {"phase": "Failed", "initContainerStatuses": [ended]},
    }  # fmt: skip
    assert "kubectl logs p --container=adapter" in str(diagnose_pod(crashed, [])[0])
