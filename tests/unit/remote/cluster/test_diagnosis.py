"""Tests of the diagnosis: every problem of a pod, a Job or a claim has its cause and a remedy.

The messages in data/kubernetes_events.json are those of a real cluster (Kubernetes 1.34, containerd 1.6), with their
causes in recorded_causes.yaml; the tests make the pods. pods.yaml and scheduling.yaml have what was not recorded.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from remote.cluster.diagnosis.finding import Diagnosis, grouped_lines
from remote.cluster.diagnosis.pods import diagnose_claim, diagnose_job, diagnose_pod, explain_scheduling
from tests.support.cases import Case, load_cases

RECORDED_SCENARIOS = json.loads((Path(__file__).parent / "data" / "kubernetes_events.json").read_text())
RECORDED_CASES = load_cases(__file__, "recorded_causes.yaml")
CASES = load_cases(__file__, "pods.yaml")
UID, IMAGE = "0000-1111", "registry.example.com/team/qlora-bench:1.0"
BASE_SPECS: dict[str, dict[str, Any]] = {
    "pod": {
        "nodeName": "node-2",
        "containers": [{"name": "main", "image": IMAGE}],
        "imagePullSecrets": [{"name": "ocir-secret"}],
    },
    "job": {"parallelism": 4},
    "claim": {},
}
BASE_STATUSES: dict[str, dict[str, Any]] = {"pod": {}, "job": {"active": 1}, "claim": {"phase": "Pending"}}


def diagnose(case: Case) -> list[Diagnosis]:
    kind = case.get("kind", "pod")
    status = BASE_STATUSES[kind] | case.get("status", {})
    if "container" in case:
        status["containerStatuses"] = [{"name": "main", "state": case["container"]}]
    target = {"metadata": {"name": kind.upper(), "uid": UID, **case.get("meta", {})}}
    target |= {"spec": BASE_SPECS[kind] | case.get("spec", {}), "status": status}
    events = case.get("events", {})
    reasons_and_messages = events.items() if isinstance(events, dict) else events
    function = {"pod": diagnose_pod, "job": diagnose_job, "claim": diagnose_claim}[kind]
    return function(
        target,
        [
            {
                "involvedObject": {"uid": case.get("uid", UID)},
                "reason": reason,
                "message": text,
                "lastTimestamp": f"{at:03}",
            }
            for at, (reason, text) in enumerate(reasons_and_messages)
        ],
    )


@pytest.mark.parametrize("case", CASES)
def test_the_cause_of_a_pod_a_job_or_a_claim(case: Case) -> None:
    findings = diagnose(case)
    if case["expected"] is None:
        assert findings == []
        return
    (finding,) = findings
    assert {name: getattr(finding, name) for name in case["expected"]} == case["expected"]
    assert finding.remedy
    name = case.get("meta", {}).get("name", case.get("kind", "pod").upper())
    assert finding.subject == f"{case.get('kind', 'pod')} {name}"


def recorded_case(topic: str, name: str) -> Case:
    """Return the case of a recorded scenario."""
    scenario = RECORDED_SCENARIOS[topic][name]
    recorded = scenario["pod_status"] or {}
    events = [(e["reason"], e["message"]) for e in sorted(scenario["events"], key=lambda e: str(e["at"]))]
    if topic in ("quota", "pod-security", "volume-claims"):
        return {"kind": "claim" if topic == "volume-claims" else "job", "events": events}
    status: dict[str, Any] = {key: recorded[key] for key in ("phase", "reason", "message") if key in recorded}
    unscheduled = [message for reason, message in events if reason == "FailedScheduling"]
    if unscheduled and recorded.get("phase") == "Pending":
        status["conditions"] = [{"type": "PodScheduled", "status": "False", "message": unscheduled[-1]}]
    if state := recorded.get("containerState"):
        status["containerStatuses"] = [{"name": "main", "state": state}]
    image = re.search(r'(?:pull image|pulling image|tag|Container image) \\\\*"([^"\\]+)\\*"', json.dumps(scenario))
    spec = {"containers": [{"name": "main", "image": image[1]}]} if image else {}
    return {"status": status, "spec": spec, "events": events}


@pytest.mark.parametrize("case", RECORDED_CASES)
def test_every_recorded_scenario_has_its_cause(case: Case) -> None:
    (finding,) = diagnose(recorded_case(case["topic"], case["name"]))
    assert finding.cause == case["cause"]
    assert finding.remedy
    if case["topic"] == "image-pull":
        assert "\n" not in str(finding)
        assert any(part in finding.reason for part in ("example", "ocir", "10.99")), "names the image"


@pytest.mark.parametrize("name", ["succeeded", "running", "init-running", "oom-child-killed"])
def test_a_healthy_or_starting_pod_has_no_finding(name: str) -> None:
    assert diagnose(recorded_case("containers", name)) == []


def test_events_of_an_earlier_pod_of_the_same_name_do_not_count() -> None:
    case = recorded_case("mounts-and-environment", "mount-nfs-unreachable")
    assert len(diagnose(case)) == 1
    assert diagnose(case | {"uid": "another"}) == []


@pytest.mark.parametrize("case", load_cases(__file__, "scheduling.yaml"))
def test_other_messages_of_the_scheduler_are_explained_or_passed_on(case: Case) -> None:
    assert [finding.cause for finding in explain_scheduling(case["message"])] == case["causes"]


def test_a_cordoned_node_is_reported_in_addition() -> None:
    for scenario in RECORDED_SCENARIOS["scheduling-one-node-cordoned"].values():
        message = next(event["message"] for event in scenario["events"] if event["reason"] == "FailedScheduling")
        assert [finding.cause for finding in explain_scheduling(message)][1:] == ["cordoned"]


def make_finding(subject: str, reason: str = "refused") -> Diagnosis:
    return Diagnosis(subject=subject, cause="c", reason=reason, remedy="fix it")


def test_equal_findings_of_several_pods_are_one_line() -> None:
    pods = [make_finding(f"pod p-{number}") for number in range(4)]
    assert grouped_lines(pods[:1]) == ["pod p-0: refused; fix it"]
    assert grouped_lines([*pods[:2], make_finding("pod q", "full"), *pods[2:]]) == [
        "pod p-0, pod p-1, pod p-2, pod p-3: refused; fix it",
        "pod q: full; fix it",
    ]
    assert grouped_lines([make_finding("job a"), make_finding("pod b")]) == ["job a, pod b: refused; fix it"]
    (many,) = grouped_lines(make_finding(f"pod p-{number}") for number in range(64))
    assert "pod p-7 and 56 more: " in many
