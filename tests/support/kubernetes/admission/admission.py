"""Checks before an object is stored: its namespace, service account, immutable fields of a Job."""

import json

from tests.support.kubernetes.api.answers import Json, bad_request, forbidden, invalid, not_found
from tests.support.kubernetes.store.resources import Resource
from tests.support.kubernetes.store.store import Store


def _check_namespace(store: Store, resource: Resource, namespace: str, name: str) -> None:
    stored = store.find("namespaces", "", namespace)
    if stored is None:
        raise not_found("namespaces", namespace)
    if stored["metadata"].get("deletionTimestamp"):
        reason = f"unable to create new content in namespace {namespace} because it is being terminated"
        message = f"namespace {namespace} is being terminated"
        cause = {"reason": "NamespaceTerminating", "message": message, "field": "metadata.namespace"}
        raise forbidden(resource.key, name, reason, causes=[cause])


def admit(store: Store, resource: Resource, obj: Json) -> None:
    """Run the admission checks of a new object. Raises Refusal."""
    metadata = obj["metadata"]
    namespace, name = metadata.get("namespace", ""), metadata["name"]
    if resource.namespaced:
        _check_namespace(store, resource, namespace, name)
    if resource.key != "pods":
        return
    spec = obj["spec"]
    if spec.get("restartPolicy", "Always") != "Never":
        raise bad_request("the tests' server runs each container once: restartPolicy must be Never")
    account = spec.get("serviceAccountName", "default")
    if account != "default" and store.find("serviceaccounts", namespace, account) is None:
        reason = f'error looking up service account {namespace}/{account}: serviceaccount "{account}" not found'
        raise forbidden("pods", name, reason)


def check_change(resource: Resource, old: Json, new: Json) -> None:
    """Check that no immutable field of a Job changes. Raises Refusal (422)."""
    for field in ("template", "completionMode", "selector", "completions") if resource.key == "jobs.batch" else ():
        if old["spec"].get(field) != new["spec"].get(field):
            message = f"Invalid value: {json.dumps(new['spec'].get(field))}: field is immutable"
            cause = ("FieldValueInvalid", message, f"spec.{field}")
            raise invalid(resource.kind, resource.group, new["metadata"]["name"], [cause])
