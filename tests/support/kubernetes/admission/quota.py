"""Resource quotas: what the pods of a namespace use, and the refusal of one more."""

from fractions import Fraction

from tests.support.kubernetes.api.answers import Json, forbidden
from tests.support.kubernetes.controllers.quantities import number, shown
from tests.support.kubernetes.store.store import Store


def requests(spec: Json) -> dict[str, Fraction]:
    """What a pod asks of its node, by resource."""
    found: dict[str, Fraction] = {}
    for container in spec["containers"]:
        resources = container.get("resources") or {}
        for name, quantity in {**resources.get("limits", {}), **resources.get("requests", {})}.items():
            found[name] = found.get(name, Fraction(0)) + number(quantity)
    return found


def _counted(spec: Json, hard: Json) -> dict[str, Fraction]:
    """A pod's share of every line of a quota."""
    asked = requests(spec)
    found = {}
    for line in hard:
        if line in ("pods", "count/pods"):
            found[line] = Fraction(1)
        else:
            name = line.removeprefix("requests.").removeprefix("limits.")
            if asked.get(name):
                found[line] = asked[name]
    return found


def used(store: Store, namespace: str, hard: Json) -> dict[str, Fraction]:
    total = {line: Fraction(0) for line in hard}
    for pod in store.list("pods", namespace):
        if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            for line, value in _counted(pod["spec"], hard).items():
                total[line] += value
    return total


def check(store: Store, namespace: str, name: str, spec: Json) -> None:
    """Raises Refusal (403) when the pod would go over a quota of its namespace."""
    for quota in store.list("resourcequotas", namespace):
        hard = quota["spec"].get("hard", {})
        taken, asked = used(store, namespace, hard), _counted(spec, hard)
        over = sorted(line for line, value in asked.items() if taken[line] + value > number(hard[line]))
        if over:
            wanted = ",".join(f"{line}={shown(asked[line])}" for line in over)
            now_used = ",".join(f"{line}={shown(taken[line])}" for line in over)
            limits = ",".join(f"{line}={hard[line]}" for line in over)
            why = (
                f"exceeded quota: {quota['metadata']['name']}, requested: {wanted}, used: {now_used}, limited: {limits}"
            )
            raise forbidden("pods", name, why)


def refresh(store: Store) -> None:
    """Write what is used into every quota's status."""
    for quota in store.list("resourcequotas"):
        metadata, hard = quota["metadata"], quota["spec"].get("hard", {})
        now_used = {line: shown(value) for line, value in used(store, metadata["namespace"], hard).items()}
        status = {"hard": dict(hard), "used": now_used}
        if quota.get("status") != status:
            store.edit(
                "resourcequotas", metadata["namespace"], metadata["name"], lambda q, s=status: q.update(status=s)
            )  # type: ignore[misc]
