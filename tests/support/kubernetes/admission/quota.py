"""Resource quotas: the usage of a namespace's pods, and the rejection of pods that exceed a quota."""

from decimal import Decimal

from remote.cluster.quantities import parse_quantity
from tests.support.kubernetes.api.answers import Json, forbidden
from tests.support.kubernetes.store.store import Store


def format_quantity(value: Decimal) -> str:
    """Format a quantity as an integer, or in thousandths (`500m`)."""
    return str(int(value)) if value == int(value) else f"{int(value * 1000)}m"


def requests(spec: Json) -> dict[str, Decimal]:
    """Return a pod's resource requests, by resource."""
    total: dict[str, Decimal] = {}
    for container in spec["containers"]:
        resources = container.get("resources") or {}
        for name, quantity in {**resources.get("limits", {}), **resources.get("requests", {})}.items():
            total[name] = total.get(name, Decimal(0)) + parse_quantity(quantity)
    return total


def _quota_usage(spec: Json, hard: Json) -> dict[str, Decimal]:
    """Return a pod's usage of each line of a quota."""
    requested = requests(spec)
    counted = {}
    for line in hard:
        if line in ("pods", "count/pods"):
            counted[line] = Decimal(1)
        else:
            name = line.removeprefix("requests.").removeprefix("limits.")
            if requested.get(name):
                counted[line] = requested[name]
    return counted


def used_by_namespace(store: Store, namespace: str, hard: Json) -> dict[str, Decimal]:
    total = {line: Decimal(0) for line in hard}
    for pod in store.list("pods", namespace):
        if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            for line, value in _quota_usage(pod["spec"], hard).items():
                total[line] += value
    return total


def check(store: Store, namespace: str, name: str, spec: Json) -> None:
    """Check that the pod fits into the quotas of its namespace. Raises Refusal (403)."""
    for quota in store.list("resourcequotas", namespace):
        hard = quota["spec"].get("hard", {})
        taken, requested = used_by_namespace(store, namespace, hard), _quota_usage(spec, hard)
        over = sorted(line for line, value in requested.items() if taken[line] + value > parse_quantity(hard[line]))
        if over:
            wanted = ",".join(f"{line}={format_quantity(requested[line])}" for line in over)
            now_used = ",".join(f"{line}={format_quantity(taken[line])}" for line in over)
            limits = ",".join(f"{line}={hard[line]}" for line in over)
            reason = (
                f"exceeded quota: {quota['metadata']['name']}, requested: {wanted}, used: {now_used}, limited: {limits}"
            )
            raise forbidden("pods", name, reason)


def refresh(store: Store) -> None:
    """Write the usage to every quota's status."""
    for quota in store.list("resourcequotas"):
        metadata, hard = quota["metadata"], quota["spec"].get("hard", {})
        now_used = {
            line: format_quantity(value)
            for line, value in used_by_namespace(store, metadata["namespace"], hard).items()
        }
        status = {"hard": dict(hard), "used": now_used}
        if quota.get("status") != status:
            store.edit(
                "resourcequotas", metadata["namespace"], metadata["name"], lambda q, s=status: q.update(status=s)
            )  # type: ignore[misc]
