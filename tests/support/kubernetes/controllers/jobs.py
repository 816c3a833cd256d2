"""Job controller: a pod per index, replacements, completion.

As recorded from Kubernetes 1.34 and 1.36: a pod has a finalizer until it is counted. Its deletion counts as a failure,
and its replacement starts at once.

Not covered: Jobs that are not Indexed, back-off and its limits, policies, deadlines.
"""

from collections.abc import Callable

from tests.support.kubernetes.api.answers import Json, Refusal, deep_copy
from tests.support.kubernetes.store.store import Store, condition, suffix, true_conditions

INDEX = "batch.kubernetes.io/job-completion-index"
_TRACKING = "batch.kubernetes.io/job-tracking"
_ACTIVE = ("Pending", "Running")


def format_indexes(indexes: set[int]) -> str:
    """Format indexes like completedIndexes: `0-2,5`; a span of two is `0,1`."""
    spans: list[list[int]] = []
    for index in sorted(indexes):
        if spans and spans[-1][-1] == index - 1:
            spans[-1].append(index)
        else:
            spans.append([index])
    return ",".join(f"{span[0]}-{span[-1]}" if len(span) > 2 else ",".join(map(str, span)) for span in spans)


def parse_indexes(text: str) -> set[int]:
    spans = [span.partition("-") for span in filter(None, text.split(","))]
    return {index for first, _, last in spans for index in range(int(first), int(last or first) + 1)}


def _index(pod: Json) -> int:
    return int(pod["metadata"]["annotations"][INDEX])


def _phase(pod: Json) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))


def _is_going(obj: Json) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def _is_owned(pod: Json, jobs: set[str]) -> bool:
    return any(ref["uid"] in jobs for ref in pod["metadata"].get("ownerReferences", []))


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

    def _current(self) -> list[Json]:
        return [
            job
            for job in self._store.list("jobs.batch")
            if not _is_going(job) and "Complete" not in true_conditions(job)
        ]

    def run(self) -> None:
        for job in self._current():
            self._sync(job)
        current = {job["metadata"]["uid"] for job in self._current()}
        for pod in self._store.list("pods"):
            if not _is_owned(pod, current):
                self._release(pod)

    def _release(self, pod: Json) -> None:
        """Remove the finalizer of a pod that has been counted, or whose Job has ended or goes."""
        metadata = pod["metadata"]
        if _TRACKING in metadata.get("finalizers", []):
            self._store.edit(
                "pods", metadata["namespace"], metadata["name"], lambda changed: changed["metadata"].pop("finalizers")
            )

    def _sync(self, job: Json) -> None:
        """Count the pods that have ended; then end the Job, or create the pods that are missing."""
        metadata, status = job["metadata"], deep_copy(job.get("status", {}))
        pods = [pod for pod in self._store.list("pods", metadata["namespace"]) if _is_owned(pod, {metadata["uid"]})]
        done = parse_indexes(status.get("completedIndexes", ""))
        self._count(pods, status, done)
        active = [pod for pod in pods if _phase(pod) in _ACTIVE]
        alive = [pod for pod in active if not _is_going(pod)]
        status["terminating"] = len(active) - len(alive)
        if len(done) == job["spec"]["completions"]:
            for pod in alive:
                self._delete_pod(metadata["namespace"], pod["metadata"]["name"])
            status["conditions"], alive = [condition("Complete", "True")], []
        else:
            alive += self._create(job, alive, done)
        status |= {"active": len(alive), "ready": sum("Ready" in true_conditions(pod) for pod in alive)}
        if done:
            status["completedIndexes"] = format_indexes(done)
        self._store.edit("jobs.batch", metadata["namespace"], metadata["name"], lambda j: j.update(status=status))

    def _count(self, pods: list[Json], status: Json, done: set[int]) -> None:
        """Count each finished pod once in the status."""
        for pod in pods:
            is_tracked = _TRACKING in pod["metadata"].get("finalizers", [])
            if _phase(pod) == "Succeeded":
                done.add(_index(pod))
                self._release(pod)
            elif is_tracked and (_is_going(pod) or _phase(pod) not in _ACTIVE):
                self._release(pod)
                status["failed"] = status.get("failed", 0) + 1

    def _create(self, job: Json, alive: list[Json], done: set[int]) -> list[Json]:
        spec = job["spec"]
        busy = {_index(pod) for pod in alive} | done
        free = [index for index in range(spec["completions"]) if index not in busy]
        made = []
        for index in free[: max(0, spec["parallelism"] - len(alive))]:
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
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"]}
        metadata |= {
            "name": f"{name}-{index}-{suffix()}",
            "finalizers": [_TRACKING],
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        }
        for kind in ("labels", "annotations"):
            metadata.setdefault(kind, {})[INDEX] = str(index)
        spec = template["spec"]
        spec.setdefault("hostname", f"{name}-{index}")
        where = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}}
        for container in spec["containers"]:
            container.setdefault("env", []).append({"name": "JOB_COMPLETION_INDEX", "valueFrom": where})
        return {"apiVersion": "v1", "kind": "Pod", **template}
