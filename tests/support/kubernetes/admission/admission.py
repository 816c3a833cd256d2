"""Checks before an object is stored: its namespace, references, Pod Security, quotas, the API's own rules."""

import json
import re
from typing import Any

from tests.support.kubernetes.admission import podsecurity, quota
from tests.support.kubernetes.api.answers import Json, forbidden, invalid, not_found
from tests.support.kubernetes.controllers.quantities import parse_quantity
from tests.support.kubernetes.store.resources import Resource
from tests.support.kubernetes.store.store import Store

_NAME = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_ENFORCE, _WARN = "pod-security.kubernetes.io/enforce", "pod-security.kubernetes.io/warn"
_POD_MAY_CHANGE = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds")


def _level(store: Store, namespace: str, label: str) -> str:
    stored = store.find("namespaces", "", namespace) or {"metadata": {}}
    return str(stored["metadata"].get("labels", {}).get(label, "privileged"))


def _check_namespace(store: Store, resource: Resource, namespace: str, name: str) -> None:
    stored = store.find("namespaces", "", namespace)
    if stored is None:
        raise not_found("namespaces", namespace)
    if stored["metadata"].get("deletionTimestamp"):
        reason = f"unable to create new content in namespace {namespace} because it is being terminated"
        message = f"namespace {namespace} is being terminated"
        cause = {"reason": "NamespaceTerminating", "message": message, "field": "metadata.namespace"}
        raise forbidden(resource.key, name, reason, causes=[cause])


def _check_name(resource: Resource, name: str) -> None:
    if resource.group == "rbac.authorization.k8s.io" or _NAME.match(name):
        return
    message = (
        f'Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '
        "'-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for "
        r"validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
    )
    raise invalid(resource.kind, resource.group, name, [("FieldValueInvalid", message, "metadata.name")])


def _pod_causes(spec: Json, at: str) -> list[tuple[str, str, str]]:
    causes = []
    volumes = {volume["name"] for volume in spec.get("volumes", [])}
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(kind) or []):
            where = f"{at}.{kind}[{index}]"
            for mount_index, mount in enumerate(container.get("volumeMounts", [])):
                if mount["name"] not in volumes:
                    field = f"{where}.volumeMounts[{mount_index}].name"
                    causes.append(("FieldValueNotFound", f'Not found: "{mount["name"]}"', field))
            if not container.get("image"):
                causes.append(("FieldValueRequired", "Required value", f"{where}.image"))
            causes.extend(_resource_causes(container.get("resources") or {}, where))
    return causes


def _resource_causes(resources: Json, where: str) -> list[tuple[str, str, str]]:
    causes = []
    limits = resources.get("limits", {})
    for name, requested in resources.get("requests", {}).items():
        if "/" in name and name in limits and parse_quantity(requested) != parse_quantity(limits[name]):
            message = f'Invalid value: "{requested}": must be equal to {name} limit of {limits[name]}'
            causes.append(("FieldValueInvalid", message, f"{where}.resources.requests"))
        elif name in limits and parse_quantity(requested) > parse_quantity(limits[name]):
            message = f'Invalid value: "{requested}": must be less than or equal to {name} limit of {limits[name]}'
            causes.append(("FieldValueInvalid", message, f"{where}.resources.requests"))
    return causes


def _job_causes(spec: Json) -> list[tuple[str, str, str]]:
    template = spec["template"]["spec"]
    causes = _pod_causes(template, "spec.template.spec")
    if template.get("restartPolicy") not in ("Never", "OnFailure"):
        value = template.get("restartPolicy", "Always")
        message = f'Unsupported value: "{value}": supported values: "OnFailure", "Never"'
        causes.append(("FieldValueNotSupported", message, "spec.template.spec.restartPolicy"))
    if spec.get("completionMode") == "Indexed" and spec.get("completions") is None:
        message = "Required value: when completion mode is Indexed"
        causes.append(("FieldValueRequired", message, "spec.completions"))
    if "backoffLimitPerIndex" in spec and spec.get("completionMode") != "Indexed":
        message = 'Invalid value: "NonIndexed": requires indexed completion mode'
        causes.append(("FieldValueInvalid", message, "spec.backoffLimitPerIndex"))
    return causes


def validate(resource: Resource, obj: Json) -> None:
    """Check the API's own rules that this server implements. Raises Refusal (422)."""
    name = obj["metadata"]["name"]
    _check_name(resource, name)
    causes: list[tuple[str, str, str]] = []
    if resource.key == "pods":
        causes = _pod_causes(obj["spec"], "spec")
    elif resource.key == "jobs.batch":
        causes = _job_causes(obj["spec"])
    if causes:
        raise invalid(resource.kind, resource.group, name, causes)


def check_change(resource: Resource, old: Json, new: Json) -> None:
    """Check that no immutable field changes. Raises Refusal (422)."""
    name = new["metadata"]["name"]
    causes: list[tuple[str, str, str]] = []
    if resource.key == "pods" and _immutable_part(old["spec"]) != _immutable_part(new["spec"]):
        message = (
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to "
            "existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was "
            "previously negative)"
        )
        causes.append(("FieldValueForbidden", message, "spec"))
    elif resource.key == "jobs.batch":
        for field in ("template", "completionMode", "selector", "completions"):
            if old["spec"].get(field) != new["spec"].get(field):
                message = f"Invalid value: {json.dumps(new['spec'].get(field))}: field is immutable"
                causes.append(("FieldValueInvalid", message, f"spec.{field}"))
    elif resource.key == "secrets" and old.get("type") != new.get("type"):
        causes.append(("FieldValueInvalid", f'Invalid value: "{new.get("type")}": field is immutable', "type"))
    elif resource.key in ("configmaps", "secrets") and old.get("immutable") and old.get("data") != new.get("data"):
        message = "Forbidden: field is immutable when `immutable` is set"
        causes.append(("FieldValueForbidden", message, "data"))
    if causes:
        raise invalid(resource.kind, resource.group, name, causes)


def _immutable_part(spec: Json) -> Any:
    """Return the immutable part of a pod's spec."""
    immutable = {name: value for name, value in spec.items() if name not in _POD_MAY_CHANGE}
    for kind in ("containers", "initContainers"):
        immutable[kind] = [{k: v for k, v in container.items() if k != "image"} for container in spec.get(kind) or []]
    return immutable


def admit(store: Store, resource: Resource, obj: Json) -> None:
    """Run the admission checks of a new object. Raises Refusal."""
    metadata = obj["metadata"]
    namespace, name = metadata.get("namespace", ""), metadata["name"]
    if resource.namespaced:
        _check_namespace(store, resource, namespace, name)
    if resource.key != "pods":
        return
    spec = obj["spec"]
    account = spec.get("serviceAccountName", "default")
    if account != "default" and store.find("serviceaccounts", namespace, account) is None:
        reason = f'error looking up service account {namespace}/{account}: serviceaccount "{account}" not found'
        raise forbidden("pods", name, reason)
    priority = spec.get("priorityClassName")
    if priority and store.find("priorityclasses.scheduling.k8s.io", "", priority) is None:
        raise forbidden("pods", name, f"no PriorityClass with name {priority} was found")
    runtime = spec.get("runtimeClassName")
    if runtime and store.find("runtimeclasses.node.k8s.io", "", runtime) is None:
        raise forbidden("pods", name, f'pod rejected: RuntimeClass "{runtime}" not found')
    level = _level(store, namespace, _ENFORCE)
    broken = podsecurity.violations(level, spec)
    if broken:
        raise forbidden("pods", name, podsecurity.sentence(level, broken, "violates"))
    quota.check(store, namespace, name, spec)


def warnings_for(store: Store, resource: Resource, obj: Json) -> list[str]:
    """Return the warnings of a namespace's `warn` and `enforce` labels about a workload's template."""
    if resource.key not in ("jobs.batch", "deployments.apps", "statefulsets.apps", "pods"):
        return []
    spec = obj["spec"] if resource.key == "pods" else obj["spec"]["template"]["spec"]
    namespace = obj["metadata"].get("namespace", "")
    labels = (_WARN,) if resource.key == "pods" else (_WARN, _ENFORCE)
    for label in labels:
        level = _level(store, namespace, label)
        if broken := podsecurity.violations(level, spec):
            return [podsecurity.sentence(level, broken, "would violate")]
    return []
