"""Job controller: a pod per index, replacements, limits, conditions.

As recorded from Kubernetes 1.34 and 1.36: a pod has a finalizer until it is counted. With podReplacementPolicy Failed,
the default with a podFailurePolicy, that is when it has ended: a pod that a dead node cannot end, or that was deleted
by force there, stays and has no replacement. Else its deletion counts as a failure, and its replacement starts at once.

Not covered: podFailurePolicy beyond Ignore of DisruptionTarget and FailJob on exit codes, successPolicy, TTL,
activeDeadlineSeconds, maxFailedIndexes, the back-off delay between retries (a replacement is created immediately).
"""

from collections.abc import Callable

from tests.support.kubernetes.api.answers import Json, Refusal, deep_copy
from tests.support.kubernetes.store.store import Store, condition, now, suffix, true_conditions

INDEX = "batch.kubernetes.io/job-completion-index"
_TRACKING = "batch.kubernetes.io/job-tracking"


def format_indexes(indexes: set[int]) -> str:
    """Format indexes like completedIndexes: `0-2,5`; a span of two is `0,1`."""
    spans: list[list[int]] = []
    for index in sorted(indexes):
        if spans and spans[-1][1] == index - 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    parts = []
    for first, last in spans:
        parts.append(str(first) if first == last else f"{first},{last}" if last == first + 1 else f"{first}-{last}")
    return ",".join(parts)


def parse_indexes(text: str) -> set[int]:
    indexes: set[int] = set()
    for span in filter(None, text.split(",")):
        first, _, last = span.partition("-")
        indexes |= set(range(int(first), int(last or first) + 1))
    return indexes


def _index(pod: Json) -> int:
    return int(pod["metadata"].get("annotations", {}).get(INDEX, -1))


def _phase(pod: Json) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))


def _counts_now(job: Json, pod: Json) -> bool:
    """Return whether a pod without success counts as failed."""
    going = pod["metadata"].get("deletionTimestamp") and job["spec"].get("podReplacementPolicy") != "Failed"
    return bool(going) or _phase(pod) not in ("Pending", "Running")


def _failed_container(pod: Json) -> Json | None:
    """Return the status of the first failed container, init containers included."""
    status = pod.get("status", {})
    for container in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        if container["state"].get("terminated", {}).get("exitCode", 0) != 0:
            return dict(container)
    return None


class JobController:
    """Controller that updates every Job whenever the store has changed."""

    def __init__(
        self,
        store: Store,
        create_pod: Callable[[str, Json], object],
        delete_pod: Callable[[str, str], object],
    ) -> None:
        """`create_pod(namespace, pod)` runs the API's admission; `delete_pod(namespace, name)` gives grace."""
        self._store = store
        self._create_pod, self._delete_pod = create_pod, delete_pod
        self._failures: dict[str, dict[int, int]] = {}  # Job uid to failures by index

    def run(self) -> None:
        for job in self._store.list("jobs.batch"):
            if not job["metadata"].get("deletionTimestamp"):
                self._sync(job)
        current = {
            job["metadata"]["uid"]
            for job in self._store.list("jobs.batch")
            if not job["metadata"].get("deletionTimestamp") and not true_conditions(job) & {"Complete", "Failed"}
        }
        for pod in self._store.list("pods"):
            if not any(ref["uid"] in current for ref in pod["metadata"].get("ownerReferences", [])):
                self._release(pod)

    def _release(self, pod: Json) -> None:
        """Remove the finalizer of a pod that has been counted, or whose Job has ended or goes."""
        metadata = pod["metadata"]
        if _TRACKING in metadata.get("finalizers", []):
            self._store.edit(
                "pods", metadata["namespace"], metadata["name"], lambda changed: changed["metadata"].pop("finalizers")
            )

    def _pods(self, job: Json) -> list[Json]:
        uid = job["metadata"]["uid"]
        return [
            pod
            for pod in self._store.list("pods", job["metadata"]["namespace"])
            if any(ref["uid"] == uid for ref in pod["metadata"].get("ownerReferences", []))
        ]

    def _sync(self, job: Json) -> None:
        status = deep_copy(job.get("status", {}))
        if true_conditions(job) & {"Complete", "Failed"}:
            return
        pods = self._pods(job)
        status.setdefault("startTime", now())
        status.setdefault("uncountedTerminatedPods", {})
        done, failed = parse_indexes(status.get("completedIndexes", "")), parse_indexes(status.get("failedIndexes", ""))
        verdict = self._count(job, pods, status, done, failed)
        if not verdict:
            verdict = self._verdict(job, status, done, failed)
        active = [pod for pod in pods if _phase(pod) in ("Pending", "Running")]
        alive = [pod for pod in active if not pod["metadata"].get("deletionTimestamp")]
        if verdict:
            self._end(job, status, verdict, alive)
            return
        alive += self._create(job, pods, alive, done, failed, status)
        self._set_counts(status, alive, len(active) - len([p for p in active if p in alive]))
        self._write(job, status)

    @staticmethod
    def _set_counts(status: Json, alive: list[Json], terminating: int) -> None:
        ready = sum("Ready" in true_conditions(pod) for pod in alive)
        status |= {"active": len(alive), "ready": ready, "terminating": terminating}
        if not alive:
            del status["active"]

    def _write(self, job: Json, status: Json) -> None:
        metadata = job["metadata"]
        self._store.edit("jobs.batch", metadata["namespace"], metadata["name"], lambda j: j.update(status=status))

    def _count(self, job: Json, pods: list[Json], status: Json, done: set[int], failed: set[int]) -> tuple[str, ...]:
        """Count each finished pod once in the status; return the verdict of a failure policy that applies, or ()."""
        indexed = job["spec"].get("completionMode") == "Indexed"
        for pod in pods:
            phase, index = _phase(pod), _index(pod)
            tracked = _TRACKING in pod["metadata"].get("finalizers", [])
            if phase == "Succeeded":
                # Includes a pod that was counted as failed at the start of its deletion and then exited with 0.
                if index not in done if indexed else tracked:
                    status["succeeded"] = status.get("succeeded", 0) + 1
                    done |= {index} if indexed else set()
                self._release(pod)
                continue
            if not tracked or not _counts_now(job, pod):
                continue
            self._release(pod)
            action = self._policy(job, pod)
            if action == "FailJob":
                status["failed"] = status.get("failed", 0) + 1
                return "Failed", "PodFailurePolicy", _policy_message(pod)
            if action != "Ignore":
                self._fail(job, status, index, failed)
        if indexed:
            status["completedIndexes"] = format_indexes(done)
            if not status["completedIndexes"]:
                del status["completedIndexes"]
            if "backoffLimitPerIndex" in job["spec"]:
                status["failedIndexes"] = format_indexes(failed)
        return ()

    def _fail(self, job: Json, status: Json, index: int, failed: set[int]) -> None:
        failures = self._failures.setdefault(job["metadata"]["uid"], {})
        status["failed"] = status.get("failed", 0) + 1
        failures[index] = failures.get(index, 0) + 1
        per_index = job["spec"].get("backoffLimitPerIndex")
        if per_index is not None and failures[index] > per_index:
            failed.add(index)

    @staticmethod
    def _policy(job: Json, pod: Json) -> str:
        """Return the action of the first matching rule of podFailurePolicy; Count if none matches."""
        conditions, failed = true_conditions(pod), _failed_container(pod)
        code = None if failed is None else failed["state"]["terminated"]["exitCode"]
        for rule in job["spec"].get("podFailurePolicy", {}).get("rules", []):
            if any(pattern["type"] in conditions for pattern in rule.get("onPodConditions", [])):
                return str(rule["action"])
            codes = rule.get("onExitCodes")
            applies = failed is not None and codes and codes.get("containerName") in (None, failed["name"])
            if applies and (code in codes["values"]) == (codes["operator"] == "In"):
                return str(rule["action"])
        return "Count"

    def _verdict(self, job: Json, status: Json, done: set[int], failed: set[int]) -> tuple[str, ...]:
        spec = job["spec"]
        if status.get("failed", 0) > spec.get("backoffLimit", 6):
            return "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        wanted = spec.get("completions")
        if spec.get("completionMode") == "Indexed":
            if len(done | failed) >= wanted:
                return ("Failed", "FailedIndexes", "Job has failed indexes") if failed else _complete()
            return ()
        return _complete() if wanted and status.get("succeeded", 0) >= wanted else ()

    def _end(self, job: Json, status: Json, verdict: tuple[str, ...], alive: list[Json]) -> None:
        kind, reason, message = verdict
        for pod in alive:
            self._delete(pod)
        conditions = status.setdefault("conditions", [])
        target = "SuccessCriteriaMet" if kind == "Complete" else "FailureTarget"
        conditions.append(_condition(target, reason, message))
        conditions.append(_condition(kind, reason, message))
        self._set_counts(status, [], 0)
        if kind == "Failed":
            status["failed"] = status.get("failed", 0) + len(alive)
        if kind == "Complete":
            status["completionTime"] = now()
        self._write(job, status)

    def _delete(self, pod: Json) -> None:
        metadata = pod["metadata"]
        if metadata.get("deletionTimestamp"):
            return
        self._delete_pod(metadata["namespace"], metadata["name"])

    def _create(
        self, job: Json, pods: list[Json], alive: list[Json], done: set[int], failed: set[int], status: Json
    ) -> list[Json]:
        spec = job["spec"]
        wanted = spec.get("completions")
        room = spec.get("parallelism", 1) - len(alive)
        if spec.get("completionMode") == "Indexed":
            # A pod that is being deleted keeps its index only under podReplacementPolicy Failed.
            going = pods if spec.get("podReplacementPolicy") == "Failed" else alive
            busy = {_index(pod) for pod in going if _phase(pod) in ("Pending", "Running")}
            free = [index for index in range(wanted) if index not in done | failed | busy]
        else:
            left = (wanted - status.get("succeeded", 0) - len(alive)) if wanted is not None else room
            free = [-1] * max(0, left)
        made = []
        for index in free[: max(0, room)]:
            pod = self._template(job, index)
            try:
                self._create_pod(job["metadata"]["namespace"], pod)
            except Refusal:
                break
            made.append(pod)
        return made

    def _template(self, job: Json, index: int) -> Json:
        template, name = deep_copy(job["spec"]["template"]), job["metadata"]["name"]
        metadata = template.setdefault("metadata", {})
        middle = f"-{index}" if index >= 0 else ""
        metadata |= {"name": f"{name}{middle}-{suffix()}", "generateName": f"{name}{middle}-"}
        metadata["finalizers"] = [_TRACKING]
        metadata["ownerReferences"] = [
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": name,
                "uid": job["metadata"]["uid"],
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]
        if index >= 0:
            metadata.setdefault("labels", {})[INDEX] = str(index)
            metadata.setdefault("annotations", {})[INDEX] = str(index)
            if "backoffLimitPerIndex" in job["spec"]:
                failures = self._failures.get(job["metadata"]["uid"], {}).get(index, 0)
                metadata["annotations"]["batch.kubernetes.io/job-index-failure-count"] = str(failures)
            spec = template["spec"]
            spec.setdefault("hostname", f"{name}-{index}")
            where = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}}
            for container in [*spec.get("initContainers", []), *spec["containers"]]:
                container.setdefault("env", []).append({"name": "JOB_COMPLETION_INDEX", "valueFrom": where})
        return {"apiVersion": "v1", "kind": "Pod", **template}


def _policy_message(pod: Json) -> str:
    where = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    failed = _failed_container(pod) or {}
    code = failed["state"]["terminated"]["exitCode"]
    return f"Container {failed['name']} for pod {where} failed with exit code {code} matching FailJob rule at index 0"


def _complete() -> tuple[str, ...]:
    return "Complete", "CompletionsReached", "Reached expected number of succeeded pods"


def _condition(kind: str, reason: str, message: str) -> Json:
    return condition(kind, "True", lastProbeTime=now(), reason=reason, message=message)
