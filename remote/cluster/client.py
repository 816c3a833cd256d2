"""One namespace of one cluster: the kubernetes client reads it, kubectl changes it.

Read objects are the API's own JSON, so that what decides about them (`remote.cluster.diagnosis`, `remote.cluster.plan`)
is a pure function, tested on recorded answers. kubectl does server-side apply, diff and delete with their waits, and an
operator can repeat its argv by hand.
"""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from email.utils import mktime_tz, parsedate_tz
from typing import TYPE_CHECKING, Any

from remote.cluster.errors import ClusterError, Forbidden, Misconfigured, NotFound, Unreachable
from remote.cluster.kubeconfig import Target, connect
from remote.cluster.kubectl import CHECK_NETWORK, LOG_IN, Kubectl, documents, not_installed, refusal
from remote.cluster.labels import FIELD_MANAGER, PART_OF, Object
from remote.cluster.resource_kinds import KINDS, POD, Kind
from remote.hosts.command import Command, Secret, mask
from remote.hosts.host import CommandTimedOut, Completed, TooMuchOutput, one_line
from remote.hosts.process import CannotStart, run_program

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

_CONNECT_SEC, _READ_SEC = 5.0, 20.0
_ACT_SEC = 120.0
_WHOLE_SEC = 120.0  # for one answer, however slowly it comes
_MOST_BYTES = 256 << 20  # of an answer: 10,000 pods take a fifth of it
_PAUSES_SEC = (0.5, 1.0, 2.0, 4.0)  # before a question is asked again
_JSON = "application/json"
_PARTS = ("metadata", "spec", "status")
# A Secret's content is never brought here: only a server that does not know how to leave it out would send it.
_METADATA = f"{_JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{_JSON}"
_METADATA_LIST = f"{_JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{_JSON}"


class Cluster:
    """Reads and changes the target. Its methods raise the errors of `remote.cluster.errors`.

    Reading raises NotThere, Forbidden, Misconfigured or Unreachable.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.kubectl = Kubectl(namespace=target.namespace, context=target.context, kubeconfig=target.kubeconfig)
        self._pods_version = ""
        self._client = connect(target)

    def close(self) -> None:
        self._client.close()  # type: ignore[no-untyped-call]

    def _get(
        self, path: str, query: Mapping[str, str] | None = None, *, body: Object | None = None, accept: str = _JSON
    ) -> dict[str, Any]:
        """The JSON at a path of the API; with a `body`, the answer to it. Asked again while the server restarts."""
        for pause_sec in (*_PAUSES_SEC, None):
            began = time.monotonic()
            try:
                with self._ask(path, query, body=body, accept=accept) as answer:
                    return self._parsed(path, self._whole(path, answer))
            except Unreachable:
                # A server that was silent for so long has had its time.
                if pause_sec is None or time.monotonic() - began > _CONNECT_SEC:
                    raise
            time.sleep(pause_sec)
        raise AssertionError("the last try returns or raises")

    def _whole(self, path: str, answer: "BaseHTTPResponse") -> bytes:
        """All of an answer, unpacked. Raises ClusterError for one that is too long, Unreachable for one too slow."""
        content, until = bytearray(), time.monotonic() + _WHOLE_SEC
        for piece in answer.stream():
            content += piece
            if len(content) > _MOST_BYTES:
                raise ClusterError(
                    f"{self.target.server}: answers {path} with more than {_MOST_BYTES >> 20} MiB; given up"
                )
            if time.monotonic() > until:
                raise Unreachable(f"{self.target.server}: the answer to {path} is not whole after {_WHOLE_SEC:.0f} s")
        return bytes(content)

    def _parsed(self, path: str, text: bytes) -> dict[str, Any]:
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            raise Unreachable(f"{self.target.server}: the answer to {path} was cut short; the same again") from None
        if not isinstance(document, dict):
            raise Unreachable(
                f"{self.target.server}: no answer of Kubernetes to {path}: {text[:60]!r}; {CHECK_NETWORK}"
            )
        return document

    @contextlib.contextmanager
    def _ask(
        self,
        path: str,
        query: Mapping[str, str] | None,
        *,
        body: Object | None = None,
        accept: str = _JSON,
        read_sec: float = _READ_SEC,
    ) -> Iterator["BaseHTTPResponse"]:
        """The answer, whose body is read in pieces as they come. Raises as `_get`, also while it is read."""
        from kubernetes.client.exceptions import ApiException  # 0.2 s to import
        from urllib3.exceptions import HTTPError

        headers = {"Accept": accept, **({"Content-Type": _JSON} if body else {})}
        try:
            parts = self._client.param_serialize(
                "POST" if body else "GET",
                path,
                query_params=list((query or {}).items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            self._check_headers(parts[2])
            response = self._client.call_api(*parts, _request_timeout=(_CONNECT_SEC, read_sec)).response
            try:
                if not 200 <= response.status < 300:
                    raise self._refusal(response.status, self._whole(path, response), path)
                yield response
            finally:
                response.close()  # one that was read to its end has given its connection back already
        except ApiException as error:
            raise self._refusal(error.status or 0, error.body or error.reason, path) from None
        except (HTTPError, OSError) as error:
            reason = one_line(getattr(error, "reason", None) or error)
            raise Unreachable(f"{self.target.server} does not answer: {reason}; {CHECK_NETWORK}") from None

    def _check_headers(self, headers: dict[str, str]) -> None:
        """As kubectl, without the line break at the end of a token's file. The client's own error would show it."""
        for name, value in headers.items():
            headers[name] = value.strip()
            if not (headers[name].isascii() and headers[name].isprintable()):
                raise Misconfigured(
                    f"context {self.target.context}: the token of {self.target.user} is more than a line of ASCII; "
                    f"{LOG_IN}"
                )

    def _refusal(self, status: int, body: object, path: str) -> ClusterError:
        text = body.decode(errors="replace") if isinstance(body, bytes) else str(body)
        with contextlib.suppress(ValueError, RecursionError, AttributeError):  # what is none of Kubernetes' answers
            text = json.loads(text).get("message") or text
        message = one_line(text)[:300]
        if status == 401:
            return Misconfigured(
                f"context {self.target.context}: the cluster does not accept the credentials of {self.target.user} "
                f"(expired?); {LOG_IN}"
            )
        if status == 403:
            return Forbidden(f"{message}; ask the cluster's administrator for that right")
        if status == 404:
            return NotFound(f"{path}: {message}")
        return Unreachable(f"{self.target.server}: {status} at {path}: {message}")

    def _path(self, kind: Kind) -> str:
        where = f"/namespaces/{self.target.namespace}" if kind.is_namespaced else ""
        return f"{kind.api}{where}/{kind.plural}"

    def _items(self, path: str, query: Mapping[str, str] | None = None, accept: str = _JSON) -> list[dict[str, Any]]:
        return self._objects(path, self._get(path, query, accept=accept))

    def _objects(self, path: str, answer: Object) -> list[dict[str, Any]]:
        """The items of a list. Raises Unreachable where one has no name, or a part that is no object."""
        items = answer.get("items") or []
        if not isinstance(items, list) or not all(_is_object(item) for item in items):
            raise Unreachable(
                f"{self.target.server}: no answer of Kubernetes to {path}: an item is no object with a name; "
                f"{CHECK_NETWORK}"
            )
        return items

    def list_of(self, kind: str) -> list[dict[str, Any]]:
        """The fleet's objects of a kind in the target's namespace (or in the cluster, for kinds that have none).

        Empty for a kind that the cluster does not know, and for one that may not be installed and may not be read: RBAC
        answers 403, not 404, for a kind that is not installed (seen with 1.34).
        """
        place = KINDS[kind]
        try:
            items = self._items(self._path(place), {"labelSelector": PART_OF})
        except NotFound:
            return []
        except Forbidden:
            if place.is_optional:
                return []
            raise
        # A list's items come without their kind.
        version = place.api.removeprefix("/apis/").removeprefix("/api/")
        return [{**item, "apiVersion": version, "kind": kind} for item in items]

    def version(self) -> tuple[str, float | None]:
        """The server's version, and its clock in seconds since 1970, where its answer says that."""
        with self._ask("/version", None) as answer:
            clock = _moment_of(answer.headers.get("Date", ""))
            found = self._parsed("/version", self._whole("/version", answer))
        return str(found.get("gitVersion", "?")), clock

    def every(self, kind: Kind, *, namespace: str | None = None, selector: str = "") -> list[dict[str, Any]]:
        """All objects of a kind in a namespace (None: the target's), whoever made them; empty for an unknown kind."""
        path = self._path(kind)
        if namespace is not None and kind.is_namespaced:
            path = f"{kind.api}/namespaces/{namespace}/{kind.plural}"
        try:
            return self._items(path, {"labelSelector": selector} if selector else None)
        except NotFound:
            return []

    def knows_group(self, name: str) -> bool:
        """Whether the API has any version of a group, such as a controller's that may not be installed."""
        return self._one(f"/apis/{name}") is not None

    def namespace(self) -> dict[str, Any] | None:
        """The target's Namespace; None where there is none."""
        return self._one(f"/api/v1/namespaces/{self.target.namespace}")

    def has(self, kind: Kind, name: str) -> bool:
        """Whether there is an object of this kind and name."""
        return self._one(f"{self._path(kind)}/{name}") is not None

    def has_secret(self, name: str) -> bool:
        """Whether the namespace has a Secret of this name; its content is not asked for."""
        return self._one(f"{self._path(KINDS['Secret'])}/{name}", accept=_METADATA) is not None

    def secrets(self) -> list[dict[str, Any]]:
        """The fleet's Secrets by name and label; their content is not asked for."""
        items = self._items(self._path(KINDS["Secret"]), {"labelSelector": PART_OF}, accept=_METADATA_LIST)
        return [{"apiVersion": "v1", "kind": "Secret", "metadata": item["metadata"]} for item in items]

    def _one(self, path: str, *, accept: str = _JSON) -> dict[str, Any] | None:
        try:
            return self._get(path, accept=accept)
        except NotFound:
            return None

    def live(self) -> list[dict[str, Any]]:
        """Every object in the cluster that is part of this fleet, except pods and secrets.

        Raises Forbidden with all kinds that may not be listed, not with the first alone.
        """
        kinds = [kind for kind in KINDS if kind not in ("Secret", "Namespace", "PersistentVolume")]
        with ThreadPoolExecutor(max_workers=6) as pool:
            lists = list(pool.map(self._list_or_refusal, kinds))
        refused = [KINDS[kind].plural for kind, found in zip(kinds, lists, strict=True) if found is None]
        if refused:
            raise Forbidden(
                f"user {self.target.user} may not list {', '.join(refused)} in namespace {self.target.namespace}; "
                "ask the cluster's administrator for these rights (manifests/README.md says which a deployment needs)"
            )
        try:
            volumes = self.list_of("PersistentVolume")
        except Forbidden:
            volumes = []  # an operator of one namespace; without FSS there is nothing to see
        own = [volume for volume in volumes if _claimed_in(volume) == self.target.namespace]
        namespace = self.namespace()
        first = [{**namespace, "apiVersion": "v1", "kind": "Namespace"}] if namespace is not None else []
        return [*first, *(one for several in lists for one in several or []), *own]

    def _list_or_refusal(self, kind: str) -> list[dict[str, Any]] | None:
        """As `list_of`; None where that is forbidden."""
        try:
            return self.list_of(kind)
        except Forbidden:
            return None

    def pods(self) -> list[dict[str, Any]]:
        listed = self._get(self._path(POD), {"labelSelector": PART_OF})
        pods = self._objects(self._path(POD), listed)
        of_list = listed.get("metadata")
        self._pods_version = str(of_list.get("resourceVersion", "")) if isinstance(of_list, dict) else ""
        return pods

    def pod(self, name: str) -> dict[str, Any] | None:
        """A pod by its name, whoever made it; None where there is none."""
        return self._one(f"{self._path(POD)}/{name}")

    def logs(self, name: str) -> str:
        """What an ended pod wrote. Raises ClusterError of every kind."""
        completed = self._act(("logs", name), [], timeout_sec=_ACT_SEC)
        return completed.stdout.decode(errors="replace")

    def await_change(self, within_sec: float) -> None:
        """Return when one of the fleet's pods changes, at the latest after `within_sec`.

        A watch: a change is seen at once, and no request is made meanwhile.
        """
        limit = max(1, round(within_sec))
        query = {"labelSelector": PART_OF, "watch": "true", "timeoutSeconds": str(limit)}
        query["resourceVersion"] = self._pods_version
        with self._ask(self._path(POD), query, read_sec=limit + _READ_SEC) as answer:
            next(iter(answer.stream()), None)

    def events(self) -> list[dict[str, Any]]:
        return self._items(f"/api/v1/namespaces/{self.target.namespace}/events")

    def nodes(self) -> list[dict[str, Any]]:
        return self._items("/api/v1/nodes")

    def pods_everywhere(self) -> list[dict[str, Any]]:
        """The pods of all namespaces that hold something on a node."""
        return self._items("/api/v1/pods", {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"})

    def allowed(self, verb: str, kind: Kind, subresource: str = "") -> bool:
        """Whether our account may do this in the namespace (SelfSubjectAccessReview)."""
        where = {"namespace": self.target.namespace} if kind.is_namespaced else {}
        attributes = {"verb": verb, "resource": kind.plural, "group": kind.group, "subresource": subresource, **where}
        version = "authorization.k8s.io/v1"
        body = {"apiVersion": version, "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes}}
        answer = self._get(f"/apis/{version}/selfsubjectaccessreviews", body=body)
        return bool(answer.get("status", {}).get("allowed"))

    def apply(self, objects: Sequence[Object], *, take_over: bool = False, secrets: tuple[Secret, ...] = ()) -> None:
        """Server-side apply, through standard input. Raises ClusterError of every kind."""
        self._act(_server_side("apply", take_over), objects, timeout_sec=_ACT_SEC, secrets=secrets)

    def diff(self, objects: Sequence[Object], *, take_over: bool) -> str:
        """What a server-side apply would change, as kubectl shows it; raises as `apply`."""
        completed = self._act(_server_side("diff", take_over), objects, timeout_sec=_ACT_SEC, fine=(0, 1))
        return completed.stdout.decode(errors="replace")

    def delete(self, objects: Sequence[Object], *, wait_sec: float) -> None:
        """Delete these and wait until they are gone. Raises as `apply`, also when they do not go."""
        arguments = ("delete", "--ignore-not-found", "--cascade=foreground", f"--timeout={wait_sec:.0f}s", "-f", "-")
        bare = [
            {key: object[key] for key in ("apiVersion", "kind")} | {"metadata": _name_of(object)} for object in objects
        ]
        self._act(arguments, bare, timeout_sec=wait_sec + 30.0)

    def _act(
        self,
        arguments: tuple[str, ...],
        objects: Sequence[Object],
        *,
        timeout_sec: float,
        fine: tuple[int, ...] = (0,),
        secrets: tuple[Secret, ...] = (),
    ) -> Completed:
        # The secrets are not named to the command: a short password may well be a part of a word in its argv.
        command = Command(argv=self.kubectl.argv(*arguments))
        # YAML and not JSON: kubectl before 1.34 fails on "---" between JSON documents.
        stdin = documents(dict(object) for object in objects).encode()
        try:
            completed = run_program(command.argv, label=command.render(), stdin=stdin, timeout_sec=timeout_sec)
        except CannotStart as error:
            raise not_installed(error) from None
        except CommandTimedOut as error:
            raise Unreachable(f"{error}; the same again") from None
        except TooMuchOutput as error:
            raise ClusterError(str(error)) from None
        if completed.exit_code not in fine:
            stderr = mask(completed.stderr.decode(errors="replace"), secrets)
            raise refusal(f"kubectl {arguments[0]}", stderr)
        return completed


def _moment_of(date: str) -> float | None:
    """Seconds since 1970; None for a date that is none."""
    with contextlib.suppress(ValueError, OverflowError):
        said = parsedate_tz(date)
        return None if said is None else float(mktime_tz(said))
    return None


def _claimed_in(volume: Mapping[str, Any]) -> object:
    """The namespace of a persistent volume's claim; None where it has none."""
    claim = volume.get("spec", {}).get("claimRef")
    return claim.get("namespace") if isinstance(claim, dict) else None


def _is_object(item: object) -> bool:
    if not isinstance(item, dict) or not all(isinstance(item.get(key, {}), dict) for key in _PARTS):
        return False
    return isinstance(item.get("metadata", {}).get("name"), str)


def _server_side(verb: str, take_over: bool) -> tuple[str, ...]:
    force = ("--force-conflicts",) if take_over else ()
    return (verb, "--server-side", f"--field-manager={FIELD_MANAGER}", *force, "-f", "-")


def _name_of(one: Object) -> dict[str, str]:
    return {key: one["metadata"][key] for key in ("name", "namespace") if one["metadata"].get(key)}
