"""Recorder of Events: as in the real one, a repeated message updates `count` and `lastTimestamp`."""

from tests.support.kubernetes.api.answers import Json
from tests.support.kubernetes.store.resources import by_key
from tests.support.kubernetes.store.store import Store, now, now_micro


def reference(key: str, obj: Json, field_path: str = "") -> Json:
    resource = by_key(key)
    metadata = obj["metadata"]
    made = {
        "kind": resource.kind,
        "namespace": metadata.get("namespace", ""),
        "name": metadata["name"],
        "uid": metadata["uid"],
        "apiVersion": resource.api_version,
        "resourceVersion": metadata.get("resourceVersion", ""),
    }
    if not made["namespace"]:
        del made["namespace"]
    return made | ({"fieldPath": field_path} if field_path else {})


class Recorder:
    """Writer of Events about objects to the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._made: dict[tuple[str, str, str], str] = {}

    def record(
        self,
        key: str,
        obj: Json,
        reason: str,
        message: str,
        *,
        by: str,
        kind: str = "Normal",
        host: str = "",
        container: str = "",
    ) -> None:
        """Record an event; `by` is the component (`kubelet`, `job-controller`, ...), `host` the kubelet's node."""
        namespace = obj["metadata"].get("namespace") or "default"
        field_path = f"spec.containers{{{container}}}" if container else ""
        series = (obj["metadata"]["uid"], reason, message)
        name = self._made.get(series)

        def count_up(event: Json) -> None:
            event["count"] = event.get("count", 1) + 1
            event["lastTimestamp"] = now()

        if name and self._store.edit("events", namespace, name, count_up):
            return
        name = f"{obj['metadata']['name']}.{self._store.version:016x}"
        self._made[series] = name
        event: Json = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name},
            "involvedObject": reference(key, obj, field_path),
            "reason": reason,
            "message": message,
            "type": kind,
            "reportingComponent": by,
            "reportingInstance": host or f"{by}-0",
        }
        if by == "default-scheduler":  # uses the new events API: no count, only eventTime
            event |= {"eventTime": now_micro(), "firstTimestamp": None, "lastTimestamp": None, "source": {}}
            event["action"] = "Binding" if reason == "Scheduled" else "Scheduling"
        else:
            stamp = now()
            event |= {"eventTime": None, "firstTimestamp": stamp, "lastTimestamp": stamp, "count": 1}
            event["source"] = {"component": by, **({"host": host} if host else {})}
        self._store.create("events", namespace, event)
