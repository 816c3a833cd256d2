"""The Job controller: a pod for every index, its replacement, the limits, the conditions.

Not here: podFailurePolicy beyond Ignore of DisruptionTarget and FailJob/FailIndex on exit codes, successPolicy, TTL,
the back-off delay between retries (a replacement is made at once).
"""

from collections.abc import Callable

from tests.support.kubernetes.api.answers import Json, Refusal, copied
from tests.support.kubernetes.controllers.events import Recorder
from tests.support.kubernetes.store.store import Store, condition, held, now, suffix

INDEX = "batch.kubernetes.io/job-completion-index"


def compressed(indexes: set[int]) -> str:
    """`0-2,5` as in completedIndexes; of two neighbours both are written, `0,1`."""
    spans: list[list[int]] = []
    for index in sorted(indexes):
        if spans and spans[-1][1] == index - 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    words = []
    for first, last in spans:
        words.append(str(first) if first == last else f"{first},{last}" if last == first + 1 else f"{first}-{last}")
    return ",".join(words)


def expanded(text: str) -> set[int]:
    found: set[int] = set()
    for word in filter(None, text.split(",")):
        first, _, last = word.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _index(pod: Json) -> int:
    return int(pod["metadata"].get("annotations", {}).get(INDEX, -1))


def _phase(pod: Json) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))


def _failed(pod: Json) -> Json | None:
    """The status of the first container that has failed, of those that run first, too."""
    status = pod.get("status", {})
    for container in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        if container["state"].get("terminated", {}).get("exitCode", 0) != 0:
            return dict(container)
    return None


class JobController:
    """Looks at every Job again whenever something has changed."""

    def __init__(
        self,
        store: Store,
        events: Recorder,
        create_pod: Callable[[str, Json], object],
        delete_pod: Callable[[str, str], object],
    ) -> None:
        """`create_pod` (namespace, pod) admits as the API does; `delete_pod` (namespace, name) gives grace."""
        self._store, self._events = store, events
        self._create_pod, self._delete_pod = create_pod, delete_pod
        self._living: dict[str, dict[str, int]] = {}  # Job uid to its unfinished pods' uids and indexes
        self._counted: dict[str, set[str]] = {}  # Job uid to the uids of finished pods that are already in its status
        self._ignored: set[str] = set()  # uids of pods whose end the policy will ignore
        self._failures: dict[str, dict[int, int]] = {}  # Job uid to failures by index

    def run(self) -> None:
        for job in self._store.list("jobs.batch"):
            if not job["metadata"].get("deletionTimestamp"):
                self._sync(job)

    def _pods(self, job: Json) -> list[Json]:
        uid = job["metadata"]["uid"]
        return [
            pod
            for pod in self._store.list("pods", job["metadata"]["namespace"])
            if any(ref["uid"] == uid for ref in pod["metadata"].get("ownerReferences", []))
        ]

    def _say(self, job: Json, reason: str, message: str, kind: str = "Normal") -> None:
        self._events.say("jobs.batch", job, reason, message, by="job-controller", kind=kind)

    def _sync(self, job: Json) -> None:
        spec, status = job["spec"], copied(job.get("status", {}))
        if held(job) & {"Complete", "Failed"}:
            return
        pods = self._pods(job)
        if spec.get("suspend"):
            self._suspend(job, pods, status)
            return
        status.setdefault("startTime", now())
        status.setdefault("uncountedTerminatedPods", {})
        done, failed = expanded(status.get("completedIndexes", "")), expanded(status.get("failedIndexes", ""))
        verdict = self._count(job, pods, status, done, failed)
        if not verdict:
            verdict = self._verdict(job, status, done, failed)
        active = [pod for pod in pods if _phase(pod) in ("Pending", "Running")]
        alive = [pod for pod in active if not pod["metadata"].get("deletionTimestamp")]
        if verdict:
            self._end(job, status, verdict, alive)
            return
        alive += self._create(job, pods, alive, done, failed, status)
        self._numbers(status, alive, len(active) - len([p for p in active if p in alive]))
        self._write(job, status)

    @staticmethod
    def _numbers(status: Json, alive: list[Json], terminating: int) -> None:
        ready = sum("Ready" in held(pod) for pod in alive)
        status |= {"active": len(alive), "ready": ready, "terminating": terminating}
        if not alive:
            del status["active"]

    def _write(self, job: Json, status: Json) -> None:
        metadata = job["metadata"]
        self._store.edit("jobs.batch", metadata["namespace"], metadata["name"], lambda j: j.update(status=status))

    def _suspend(self, job: Json, pods: list[Json], status: Json) -> None:
        for pod in pods:
            if _phase(pod) in ("Pending", "Running"):
                self._delete(job, pod)
        conditions = status.setdefault("conditions", [])
        if not any(c["type"] == "Suspended" for c in conditions):
            self._say(job, "Suspended", "Job suspended")
            conditions.append(_condition("Suspended", "JobSuspended", "Job suspended"))
            status.setdefault("uncountedTerminatedPods", {})
            self._numbers(status, [], 0)
            self._write(job, status)

    def _count(self, job: Json, pods: list[Json], status: Json, done: set[int], failed: set[int]) -> tuple[str, ...]:
        """Take finished pods into the status, each once; the verdict of a failure policy if one speaks."""
        job_uid = job["metadata"]["uid"]
        counted = self._counted.setdefault(job_uid, set())
        living = self._living.setdefault(job_uid, {})
        indexed = job["spec"].get("completionMode") == "Indexed"
        per_index = job["spec"].get("backoffLimitPerIndex")
        there = {pod["metadata"]["uid"] for pod in pods}
        # Removed before its end was seen (which a real Job's finalizer prevents), or by force: a failure, unless the
        # policy ignores what was known of it.
        gone = {uid: living.pop(uid) for uid in list(living) if uid not in there}
        for index in (gone[uid] for uid in gone.keys() - self._ignored):
            self._fail(job, status, index, failed)
        for pod in pods:
            phase, index, uid = _phase(pod), _index(pod), pod["metadata"]["uid"]
            going = (
                bool(pod["metadata"].get("deletionTimestamp")) and job["spec"].get("podReplacementPolicy") != "Failed"
            )
            if phase == "Succeeded" and index not in done and (indexed or uid not in counted):
                # Also a pod that was counted as failed when its deletion began, and then ended with exit 0.
                status["succeeded"] = status.get("succeeded", 0) + 1
                done |= {index} if indexed else set()
                counted.add(uid)
            if uid not in counted and phase in ("Pending", "Running") and not going:
                living[uid] = index
                if self._policy(job, pod) == "Ignore":
                    self._ignored.add(uid)
                continue
            living.pop(uid, None)
            if uid in counted or phase == "Succeeded":
                continue
            counted.add(uid)
            action = self._policy(job, pod)
            if action == "FailJob":
                status["failed"] = status.get("failed", 0) + 1
                return "Failed", "PodFailurePolicy", _policy_message(pod)
            if action != "Ignore":
                self._fail(job, status, index, failed, at_once=action == "FailIndex")
        if indexed:
            status["completedIndexes"] = compressed(done)
            if not status["completedIndexes"]:
                del status["completedIndexes"]
            if per_index is not None:
                status["failedIndexes"] = compressed(failed)
        return ()

    def _fail(self, job: Json, status: Json, index: int, failed: set[int], *, at_once: bool = False) -> None:
        failures = self._failures.setdefault(job["metadata"]["uid"], {})
        status["failed"] = status.get("failed", 0) + 1
        failures[index] = failures.get(index, 0) + 1
        per_index = job["spec"].get("backoffLimitPerIndex")
        if per_index is not None and (failures[index] > per_index or at_once):
            failed.add(index)

    @staticmethod
    def _policy(job: Json, pod: Json) -> str:
        """The action of the first rule of podFailurePolicy that matches; Count otherwise."""
        conditions, failed = held(pod), _failed(pod)
        code = None if failed is None else failed["state"]["terminated"]["exitCode"]
        for rule in job["spec"].get("podFailurePolicy", {}).get("rules", []):
            if any(pattern["type"] in conditions for pattern in rule.get("onPodConditions", [])):
                return str(rule["action"])
            codes = rule.get("onExitCodes")
            is_meant = failed is not None and codes and codes.get("containerName") in (None, failed["name"])
            if is_meant and (code in codes["values"]) == (codes["operator"] == "In"):
                return str(rule["action"])
        return "Count"

    def _verdict(self, job: Json, status: Json, done: set[int], failed: set[int]) -> tuple[str, ...]:
        spec = job["spec"]
        if status.get("failed", 0) > spec.get("backoffLimit", 6):
            return "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        wanted = spec.get("completions")
        if spec.get("completionMode") == "Indexed":
            if len(failed) > spec.get("maxFailedIndexes", 2**31):
                said = "Job has exceeded the specified maximal number of failed indexes"
                return "Failed", "MaxFailedIndexesExceeded", said
            if len(done | failed) >= wanted:
                return ("Failed", "FailedIndexes", "Job has failed indexes") if failed else _complete()
            return ()
        return _complete() if wanted and status.get("succeeded", 0) >= wanted else ()

    def _end(self, job: Json, status: Json, verdict: tuple[str, ...], alive: list[Json]) -> None:
        kind, reason, message = verdict
        for pod in alive:
            self._delete(job, pod)
        conditions = status.setdefault("conditions", [])
        target = "SuccessCriteriaMet" if kind == "Complete" else "FailureTarget"
        conditions.append(_condition(target, reason, message))
        conditions.append(_condition(kind, reason, message))
        self._numbers(status, [], 0)
        if kind == "Failed":
            status["failed"] = status.get("failed", 0) + len(alive)
        if kind == "Complete":
            status["completionTime"] = now()
            self._say(job, "Completed", "Job completed")
        else:
            self._say(job, reason, message, "Warning")
        self._write(job, status)

    def expire(self, job: Json) -> None:
        """activeDeadlineSeconds has passed."""
        status = copied(job.get("status", {}))
        alive = [pod for pod in self._pods(job) if _phase(pod) in ("Pending", "Running")]
        self._end(job, status, ("Failed", "DeadlineExceeded", "Job was active longer than specified deadline"), alive)

    def _delete(self, job: Json, pod: Json) -> None:
        metadata = pod["metadata"]
        if metadata.get("deletionTimestamp"):
            return
        self._say(job, "SuccessfulDelete", f"Deleted pod: {metadata['name']}")
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
            except Refusal as refusal:
                self._say(job, "FailedCreate", f"Error creating: {refusal}", "Warning")
                break
            self._say(job, "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}")
            made.append(pod)
        return made

    def _template(self, job: Json, index: int) -> Json:
        template, name = copied(job["spec"]["template"]), job["metadata"]["name"]
        metadata = template.setdefault("metadata", {})
        middle = f"-{index}" if index >= 0 else ""
        metadata |= {"name": f"{name}{middle}-{suffix()}", "generateName": f"{name}{middle}-"}
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
    failed = _failed(pod) or {}
    code = failed["state"]["terminated"]["exitCode"]
    return f"Container {failed['name']} for pod {where} failed with exit code {code} matching FailJob rule at index 0"


def _complete() -> tuple[str, ...]:
    return "Complete", "CompletionsReached", "Reached expected number of succeeded pods"


def _condition(kind: str, reason: str, message: str) -> Json:
    return condition(kind, "True", lastProbeTime=now(), reason=reason, message=message)
