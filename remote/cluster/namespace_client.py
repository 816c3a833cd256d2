"""Client of one namespace: the kubernetes package reads it, kubectl changes it.

Objects are the API's own JSON, so that `remote.cluster.diagnosis` and `remote.cluster.plan` are pure functions, tested
on recorded responses. kubectl does server-side apply, diff and delete with their waits, and an operator can repeat its
argv by hand.
"""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.utils import mktime_tz, parsedate_tz
from typing import TYPE_CHECKING, Any

from bench.records import schema
from remote.cluster.api_connection import connect
from remote.cluster.credential_cache import kubectl_of
from remote.cluster.diagnosis.readiness import PodFleet, build_fleet
from remote.cluster.kubeconfig import Target
from remote.cluster.labels import FIELD_MANAGER, PART_OF, Object
from remote.cluster.manifests import to_yaml
from remote.hosts.command import Command, Secret, mask
from remote.hosts.host_protocol import Completed, collapse_whitespace
from remote.hosts.pods.kubectl import (
    CHECK_NETWORK,
    LOG_IN,
    OTHER_AUTHORITY,
    ClusterError,
    Forbidden,
    Misconfigured,
    ObjectNotFound,
    Unreachable,
    run_kubectl,
    to_cluster_error,
)
from remote.providers import GENERIC, Provider, detect

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """API path of a kind. `is_optional`: it may not be installed, or only readable for administrators."""

    api: str
    plural: str
    is_namespaced: bool = True
    is_optional: bool = False

    @property
    def group(self) -> str:
        return self.api.split("/")[2] if self.api.startswith("/apis/") else ""


KINDS: dict[str, Kind] = {
    "Namespace": Kind(api="/api/v1", plural="namespaces", is_namespaced=False),
    "PersistentVolume": Kind(api="/api/v1", plural="persistentvolumes", is_namespaced=False, is_optional=True),
    "PersistentVolumeClaim": Kind(api="/api/v1", plural="persistentvolumeclaims"),
    "ServiceAccount": Kind(api="/api/v1", plural="serviceaccounts"),
    "ConfigMap": Kind(api="/api/v1", plural="configmaps"),
    "Secret": Kind(api="/api/v1", plural="secrets"),
    "Service": Kind(api="/api/v1", plural="services"),
    "Role": Kind(api="/apis/rbac.authorization.k8s.io/v1", plural="roles"),
    "RoleBinding": Kind(api="/apis/rbac.authorization.k8s.io/v1", plural="rolebindings"),
    "NetworkPolicy": Kind(api="/apis/networking.k8s.io/v1", plural="networkpolicies"),
    "PodDisruptionBudget": Kind(api="/apis/policy/v1", plural="poddisruptionbudgets"),
    "Job": Kind(api="/apis/batch/v1", plural="jobs"),
    "JobSet": Kind(api="/apis/jobset.x-k8s.io/v1alpha2", plural="jobsets", is_optional=True),
}

POD = Kind(api="/api/v1", plural="pods")
CSI_DRIVER = Kind(api="/apis/storage.k8s.io/v1", plural="csidrivers", is_namespaced=False)

_CONNECT_SEC, _READ_SEC = 5.0, 20.0
_KUBECTL_TIMEOUT_SEC = 120.0
_MAX_RESPONSE_VALUES = 10_000_000
_RETRY_PAUSES_SEC = (0.5, 1.0, 2.0, 4.0)
_JSON, _SECTIONS = "application/json", ("metadata", "spec", "status")
# Only metadata of Secrets is requested; a server that ignores this Accept header would send the content.
_METADATA = f"{_JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{_JSON}"
_METADATA_LIST = f"{_JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{_JSON}"
_APPLY = ("apply", "--server-side", f"--field-manager={FIELD_MANAGER}", "--force-conflicts", "-f", "-")


class Cluster:
    """A client that reads and changes the target. Its methods raise the errors of `remote.hosts.pods.kubectl`.

    Reading raises NotFound, Forbidden, Misconfigured or Unreachable.
    """

    def __init__(self, target: Target, provider: Provider | None = None) -> None:
        self.target, self._provider = target, provider
        self.kubectl = kubectl_of(target)
        self._own_kubectl = dataclasses.replace(self.kubectl, cached_kubeconfig=None)
        self._client = connect(target)

    @property
    def provider(self) -> Provider:
        """The cluster's provider: the given one, else that of its nodes; generic if they are unknown or hidden."""
        if self._provider is None:
            try:
                self._provider = detect(nodes=self.nodes()) or GENERIC
            except Forbidden:
                self._provider = GENERIC
        return self._provider

    def close(self) -> None:
        self._client.close()  # type: ignore[no-untyped-call]

    def _get(
        self, path: str, query: Mapping[str, str] | None = None, *, body: Object | None = None, accept: str = _JSON
    ) -> dict[str, Any]:
        """Fetch the JSON at an API path, or the response to `body`. Retries while the server restarts."""
        for pause_sec in (*_RETRY_PAUSES_SEC, None):
            began = time.monotonic()
            try:
                return self._parse(path, self._send(path, query, body=body, accept=accept).data)
            except Unreachable:
                # No retry after a long silence: it was the server's time to restart.
                if pause_sec is None or time.monotonic() - began > _CONNECT_SEC:
                    raise
            time.sleep(pause_sec)
        raise AssertionError("the last try returns or raises")

    def _parse(self, path: str, text: bytes) -> dict[str, Any]:
        try:
            document = schema.parse(text, max_values=_MAX_RESPONSE_VALUES)
        except ValueError as error:
            raise self._response_error(path, "is truncated", "retry") from error
        if not isinstance(document, dict):
            raise self._response_error(path, f"is not from Kubernetes: {text[:60]!r}", CHECK_NETWORK)
        return document

    def _response_error(self, path: str, problem: str, remedy: str = "") -> Unreachable:
        return Unreachable(f"{self.target.server}: the response to {path} {problem}", remedy=remedy)

    def _send(
        self, path: str, query: Mapping[str, str] | None = None, *, body: Object | None = None, accept: str = _JSON
    ) -> "BaseHTTPResponse":
        """Return the whole response to one request. Raises like `_get`."""
        from kubernetes.client.exceptions import ApiException  # 0.2 s to import
        from urllib3.exceptions import HTTPError

        try:
            method, url, headers, content, form = self._client.param_serialize(
                "POST" if body else "GET",
                path,
                query_params=list((query or {}).items()),
                header_params={"Accept": accept, **({"Content-Type": _JSON} if body else {})},
                body=body,
                auth_settings=["BearerToken"],
            )
            headers = {name: self._header_value(value) for name, value in headers.items()}
            timeout = (_CONNECT_SEC, _READ_SEC)
            answer = self._client.call_api(method, url, headers, content, form, _request_timeout=timeout)
            response: BaseHTTPResponse = answer.response
            text = response.data
        except ApiException as error:
            problem = f"{self.target.server}: {collapse_whitespace(error.reason)}"
            if "CERTIFICATE_VERIFY_FAILED" in problem:
                raise Misconfigured(problem, remedy=OTHER_AUTHORITY) from error
            raise Unreachable(problem, remedy=CHECK_NETWORK) from error
        except (HTTPError, OSError) as error:
            reason = collapse_whitespace(getattr(error, "reason", None) or error)
            raise Unreachable(f"{self.target.server} does not answer: {reason}", remedy=CHECK_NETWORK) from error
        _logger.debug("%s %s: status %d", method, path, answer.status)
        if not 200 <= answer.status < 300:
            raise self._to_error(answer.status, text.decode(errors="replace"), path)
        return response

    def _header_value(self, value: str) -> str:
        """Strip whitespace like kubectl and reject control characters; the client's own error would show the token."""
        value = value.strip()
        if not (value.isascii() and value.isprintable()):
            raise Misconfigured(
                f"context {self.target.context}: the token of {self.target.user} is more than a line of ASCII",
                remedy=LOG_IN,
            )
        return value

    def _to_error(self, status: int, text: str, path: str) -> ClusterError:
        with contextlib.suppress(ValueError):  # a body that is not Kubernetes' JSON
            text = schema.parse_object(text).get("message") or text
        message = collapse_whitespace(text)[:300]
        if status == 401:
            problem = f"the cluster does not accept the credentials of {self.target.user} (expired?)"
            return Misconfigured(f"context {self.target.context}: {problem}", remedy=LOG_IN)
        if status == 403:
            return Forbidden(message, remedy="ask the cluster's administrator for that permission")
        if status == 404:
            return ObjectNotFound(f"{path}: {message}")
        return Unreachable(f"{self.target.server}: {status} at {path}: {message}")

    def _path(self, kind: Kind) -> str:
        namespace_path = f"/namespaces/{self.target.namespace}" if kind.is_namespaced else ""
        return f"{kind.api}{namespace_path}/{kind.plural}"

    def _get_items(
        self, path: str, query: Mapping[str, str] | None = None, accept: str = _JSON
    ) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self._get(path, query, accept=accept).get("items") or []
        if not isinstance(items, list) or not all(_is_object(item) for item in items):
            raise self._response_error(path, "is not from Kubernetes: an item has no name", CHECK_NETWORK)
        return items

    def list_fleet_objects(self, kind: str) -> list[dict[str, Any]]:
        """List the fleet's objects of a kind in the target's namespace, or in the cluster for cluster-wide kinds.

        Empty for an unknown kind, and for an optional kind that may not be read: RBAC answers 403, not 404, for a kind
        that is not installed (observed with 1.34). The content of Secrets is not requested.
        """
        resource, accept = KINDS[kind], _METADATA_LIST if kind == "Secret" else _JSON
        try:
            items = self._get_items(self._path(resource), {"labelSelector": PART_OF}, accept)
        except (Forbidden, ObjectNotFound) as error:
            if isinstance(error, Forbidden) and not resource.is_optional:
                raise
            return []
        # The items of a list have no kind field.
        version = resource.api.removeprefix("/apis/").removeprefix("/api/")
        return [{**item, "apiVersion": version, "kind": kind} for item in items]

    def version(self) -> tuple[str, float | None]:
        """Return the server's version, and its clock as Unix time if the response has a date."""
        answer = self._send("/version")
        version = self._parse("/version", answer.data).get("gitVersion", "?")
        return str(version), _parse_date(answer.headers.get("Date", ""))

    def has_api_group(self, name: str) -> bool:
        """Return True if the API serves a group, such as that of an optional controller."""
        return self._get_or_none(f"/apis/{name}") is not None

    def namespace(self) -> dict[str, Any] | None:
        """Fetch the target's Namespace; None if it does not exist."""
        return self._get_or_none(f"/api/v1/namespaces/{self.target.namespace}")

    def has_object(self, kind: Kind, name: str) -> bool:
        """Return True if an object of this kind and name exists. Its content is not requested."""
        return self._get_or_none(f"{self._path(kind)}/{name}", accept=_METADATA) is not None

    def _get_or_none(self, path: str, *, accept: str = _JSON) -> dict[str, Any] | None:
        try:
            return self._get(path, accept=accept)
        except ObjectNotFound:
            return None

    def live_objects(self) -> list[dict[str, Any]]:
        """List every object in the cluster that is part of this fleet, except pods and Secrets."""
        kinds = [kind for kind in KINDS if kind not in ("Secret", "Namespace")]
        with ThreadPoolExecutor(max_workers=6) as pool:
            objects = [item for items in pool.map(self.list_fleet_objects, kinds) for item in items]
        namespace = self.namespace()
        first = [{**namespace, "apiVersion": "v1", "kind": "Namespace"}] if namespace is not None else []
        return [*first, *(item for item in objects if item["kind"] != "PersistentVolume" or self._claims(item))]

    def _claims(self, volume: Object) -> bool:
        """Check whether a volume is bound to a claim in our namespace."""
        claim = volume["spec"].get("claimRef") or {}
        return claim.get("namespace") == self.target.namespace

    def pods(self) -> list[dict[str, Any]]:
        return self._get_items(self._path(POD), {"labelSelector": PART_OF})

    def pod_fleet(self, names: Collection[str] | None = None) -> PodFleet:
        """Read the state of the Jobs with these names, of all if None; claims and events only if a pod is not up."""
        jobs = [job for job in self.list_fleet_objects("Job") if names is None or job["metadata"]["name"] in names]
        pods = self.pods()
        state = build_fleet(jobs, pods, [], [])
        if state.is_up:
            return state
        claims = self.list_fleet_objects("PersistentVolumeClaim")
        return build_fleet(jobs, pods, claims, self.events(), self.provider)

    def events(self) -> list[dict[str, Any]]:
        return self._get_items(f"/api/v1/namespaces/{self.target.namespace}/events")

    def nodes(self) -> list[dict[str, Any]]:
        return self._get_items("/api/v1/nodes")

    def pods_everywhere(self) -> list[dict[str, Any]]:
        """List the pods of all namespaces that use resources of a node."""
        return self._get_items("/api/v1/pods", {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"})

    def is_allowed(self, verb: str, kind: Kind, subresource: str = "") -> bool:
        """Return True if our account may do this in the namespace (SelfSubjectAccessReview)."""
        namespace = {"namespace": self.target.namespace} if kind.is_namespaced else {}
        attributes = {
            "verb": verb,
            "resource": kind.plural,
            "group": kind.group,
            "subresource": subresource,
            **namespace,
        }
        version = "authorization.k8s.io/v1"
        body = {"apiVersion": version, "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes}}
        answer = self._get(f"/apis/{version}/selfsubjectaccessreviews", body=body)
        return bool(answer.get("status", {}).get("allowed"))

    def apply(self, objects: Sequence[Object], *, secrets: tuple[Secret, ...] = ()) -> None:
        """Apply the objects on the server side. Raises any ClusterError."""
        self._run_kubectl(_APPLY, objects, secrets=secrets)

    def try_apply(self, objects: Sequence[Object]) -> list[dict[str, Any]]:
        """Return what the server would store if these objects were applied. Raises like `apply`."""
        completed = self._run_kubectl((*_APPLY, "--dry-run=server", "--output=json"), objects)
        answer = self._parse("a dry run", completed.stdout)
        items: list[dict[str, Any]] = answer["items"] if answer.get("kind") == "List" else [answer]
        return items

    def check_creation(self, objects: Sequence[Object]) -> None:
        """Have the server try the creation of objects, under other names than theirs. Raises like `apply`."""
        for resource in objects:
            metadata = {**resource["metadata"], "name": f"{resource['metadata']['name']}-new"}
            self._run_kubectl(("create", "--dry-run=server", "-f", "-"), [{**resource, "metadata": metadata}])

    def delete(self, objects: Sequence[Object], *, wait_sec: float) -> None:
        """Delete the objects and wait until they are gone. Raises like `apply`, also after `wait_sec`."""
        arguments = ("delete", "--ignore-not-found", "--cascade=foreground", f"--timeout={wait_sec:.0f}s", "-f", "-")
        bare = [
            {key: resource[key] for key in ("apiVersion", "kind")} | {"metadata": _name_and_namespace(resource)}
            for resource in objects
        ]
        self._run_kubectl(arguments, bare, timeout_sec=wait_sec + 30.0)

    def cordon(self, node: str) -> None:
        """Mark the node as unschedulable. Raises like `apply`; Forbidden without permission to patch nodes."""
        self._run_kubectl(("cordon", node))

    def _run_kubectl(
        self,
        arguments: tuple[str, ...],
        objects: Sequence[Object] = (),
        *,
        timeout_sec: float = _KUBECTL_TIMEOUT_SEC,
        secrets: tuple[Secret, ...] = (),
    ) -> Completed:
        # Not masked in argv, which holds no secret: a short password may be part of a word there.
        label = Command(argv=self._own_kubectl.argv(*arguments)).render()
        # A deletion may be waited for longer than a kept credential is valid.
        argv = (self._own_kubectl if arguments[0] == "delete" else self.kubectl).argv(*arguments)
        # YAML and not JSON: kubectl before 1.34 fails on "---" between JSON documents.
        stdin = to_yaml(dict(resource) for resource in objects).encode()
        names = [f"{resource['kind']}/{resource['metadata']['name']}" for resource in objects]
        _logger.log(logging.INFO if arguments[0] in ("apply", "delete") else logging.DEBUG, "%s %s", arguments, names)
        completed = run_kubectl(argv, label=label, stdin=stdin, timeout_sec=timeout_sec)
        if completed.exit_code != 0:
            stderr = mask(completed.stderr.decode(errors="replace"), secrets)
            raise to_cluster_error(f"kubectl {arguments[0]}", stderr)
        return completed


def _parse_date(date: str) -> float | None:
    """Return the Unix time of an HTTP date; None if it cannot be parsed."""
    with contextlib.suppress(ValueError, OverflowError):
        parsed = parsedate_tz(date)
        return None if parsed is None else float(mktime_tz(parsed))
    return None


def _is_object(item: object) -> bool:
    if not isinstance(item, dict) or not all(isinstance(item.get(key, {}), dict) for key in _SECTIONS):
        return False
    return isinstance(item.get("metadata", {}).get("name"), str)


def _name_and_namespace(resource: Object) -> dict[str, str]:
    return {key: resource["metadata"][key] for key in ("name", "namespace") if resource["metadata"].get(key)}
