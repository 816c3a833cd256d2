"""Client of the fake cluster: starts its process, provides a kubeconfig, and injects faults."""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

import pytest

from tests.support.kubernetes.api.answers import Json
from tests.support.kubernetes.kubectl import Kubectl
from tests.support.paths import ROOT

_STOP_SEC = 30.0


def unavailable_reason() -> str:
    """Return why this machine cannot run the fake cluster; "" if it can."""
    if sys.platform != "linux":
        return "the fake cluster needs Linux"
    if os.geteuid() != 0:
        return "the fake cluster needs root: it creates namespaces for its pods"
    missing = [program for program in ("kubectl", "nsenter", "tini") if shutil.which(program) is None]
    if missing:
        return f"the fake cluster needs {', '.join(missing)}"
    trial = subprocess.run(["unshare", "-m", "-p", "-u", "-i", "--fork", "true"], capture_output=True, check=False)
    return "" if trial.returncode == 0 else f"cannot create namespaces: {trial.stderr.decode().strip()}"


class Cluster(Kubectl):
    """The fake cluster in a separate process; a context manager. Skips the test if this machine cannot run it.

    `nodes` is the number of nodes, each with a GPU and tainted like OKE's GPU nodes. `image_paths` are folders that
    pods see under the same path, read-only (like this repository and the running Python). `image_environment` are
    variables of every image. `signer` is a key's id and its public half: a token signed with this key, like OKE's,
    authenticates as admin. `disk_bytes` makes every emptyDir a file system of that size, which really runs full.
    `toleration_scale` multiplies tolerationSeconds, to shorten the 300 s until eviction from a lost node.
    """

    context = "tests"
    _poll_sec = 0.05

    def __init__(
        self,
        *,
        nodes: int = 4,
        tainted: bool = True,
        users: Iterable[str] = ("admin",),
        signer: tuple[str, str] | None = None,
        image_paths: Iterable[Path | str] = (),
        image_environment: dict[str, str] | None = None,
        disk_bytes: int | None = None,
        toleration_scale: float = 1.0,
        image_back_off_sec: float = 1.0,
    ) -> None:
        if reason := unavailable_reason():
            pytest.skip(reason)
        self._folder = Path(tempfile.mkdtemp(prefix="tests-cluster-"))
        self._folder.chmod(0o755)  # pods run as other users
        super().__init__(self._folder / "kubeconfig", self._folder / "kube-cache")
        self._tokens = {f"token-of-{user}": user for user in users}
        self._configuration = {
            "state": str(self._folder),
            "nodes": nodes,
            "tainted": tainted,
            "users": self._tokens,
            "signer": signer,
            "image_paths": [str(ROOT), *map(str, image_paths)],
            "image_environment": image_environment or {},
            "image_back_off_sec": image_back_off_sec,
            "disk_bytes": disk_bytes,
            "toleration_scale": toleration_scale,
        }
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self.port = 0
        self.faults = Faults(self.call)

    @property
    def server(self) -> str:
        """The API server's URL."""
        return f"https://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        with (self._folder / "server.log").open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.kubernetes"],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        try:
            self.port = self._request(self._configuration)["port"]
        except BaseException:
            self.__exit__()
            raise
        self.kubeconfig.write_text(self.kubeconfig_text())
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(_STOP_SEC)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def context_description(self) -> str:
        """Description of this cluster in messages of `inv`."""
        return f"context {self.context} (cluster tests at {self.server}, user admin)"

    def kubeconfig_text(self, user: str = "admin", *, context: str = "tests", namespace: str = "default") -> str:
        """Return a kubeconfig (JSON is YAML) for one of `users`."""
        cluster = {"server": self.server, "certificate-authority": str(self._folder / "ca.crt")}
        token = next(token for token, name in self._tokens.items() if name == user)
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "tests", "cluster": cluster}],
                "users": [{"name": user, "user": {"token": token}}],
                "contexts": [{"name": context, "context": {"cluster": "tests", "user": user, "namespace": namespace}}],
                "current-context": context,
            },
            indent=1,
        )

    def kubeconfig_with_program(self) -> Path:
        """Write a kubeconfig whose credentials come from a program, like OKE's; `break_program` makes it fail."""
        config = json.loads(self.kubeconfig_text())
        token = config["users"][0]["user"]["token"]
        program = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}
        credential = {"apiVersion": program["apiVersion"], "kind": "ExecCredential", "status": {"token": token}}
        path = self._folder / "credentials"
        broken = shlex.quote(str(self._broken_program))
        path.write_text(
            f"#!/bin/sh\nif [ -e {broken} ]; then cat {broken} >&2; exit 1; fi\n"
            f"echo {shlex.quote(json.dumps(credential))}\n"
        )
        path.chmod(0o755)
        config["users"][0]["user"] = {"exec": {**program, "command": str(path)}}
        kubeconfig = self._folder / "kubeconfig-with-program"
        kubeconfig.write_text(json.dumps(config))
        return kubeconfig

    @property
    def _broken_program(self) -> Path:
        return self._folder / "credentials.broken"

    def break_program(self) -> None:
        """Make the program of `kubeconfig_with_program` print an authentication error and exit with 1."""
        self._broken_program.write_text("ServiceError: NotAuthenticated (Forbidden), connection refused\n")

    def repair_program(self) -> None:
        self._broken_program.unlink(missing_ok=True)

    def _request(self, request: Json) -> Json:
        process = self._process
        assert process is not None, "the cluster has not been started"
        assert process.stdin is not None
        assert process.stdout is not None
        with self._lock:
            try:
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except BrokenPipeError:
                line = ""
        if not line:
            raise RuntimeError(
                f"the fake cluster's process has died:\n{(self._folder / 'server.log').read_text()[-4000:]}"
            )
        return json.loads(line)  # type: ignore[no-any-return]

    def call(self, name: str, /, **arguments: Any) -> Any:
        """Call a method of `FakeCluster` in the server's process, bypassing the API."""
        response = self._request({"call": name, "arguments": arguments})
        if "error" in response:
            raise RuntimeError(response["error"])
        return response["result"]

    # Inspection

    def pod(self, name: str, namespace: str = "default") -> Json | None:
        """Return a pod's stored object, or None."""
        return self.call("get", key="pods", name=name, namespace=namespace)  # type: ignore[no-any-return]

    def objects(self, key: str, namespace: str = "") -> list[Json]:
        """Return all objects of a kind (`pods`, `jobs.batch`); an empty namespace means all."""
        return self.call("list", key=key, namespace=namespace)  # type: ignore[no-any-return]

    def requests(self) -> list[str]:
        """Return every request so far, as `METHOD path?query`."""
        return self.call("requests")  # type: ignore[no-any-return]

    def processes(self, pod: str, namespace: str = "default") -> dict[int, list[str]]:
        """Return the live processes of a pod: pid on this machine to argv."""
        return dict(self.call("processes", pod=pod, namespace=namespace))

    def claim_folder(self, claim: str, namespace: str = "default") -> Path:
        """Return the folder of a claim's files on this machine."""
        return self._folder / "claims" / namespace / claim

    def diagnosis(self) -> str:
        return (self._folder / "server.log").read_text()[-2000:]


class Faults:
    """Switches for faults. Streams and requests are counted from the call on: `nth=1` is the next one."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def exec(self, how: str, **fields: Any) -> None:
        """Break exec streams; the fields are those of `tests.support.kubernetes.faults.ExecFault`."""
        self._call("exec", how=how, **fields)

    def fail_requests(self, **fields: Any) -> None:
        """Make requests fail; the fields are those of `tests.support.kubernetes.faults.AnswerFault`."""
        self._call("answer", **fields)

    def strike_counts(self) -> dict[str, int]:
        """Return how often the armed faults have occurred: `execs` and `answers`."""
        return self._call("struck")  # type: ignore[no-any-return]

    def stop_server(self, seconds: float | None = None) -> None:
        """Cut all connections and refuse new ones, for `seconds` or until `start_server`."""
        self._call("gone", seconds=seconds)

    def start_server(self) -> None:
        self._call("back")

    def silence_server(self) -> None:
        """Answer no request and freeze every stream permanently; connections stay open."""
        self._call("silence")

    def resume_server(self) -> None:
        """Answer requests again, including waiting ones; frozen streams stay frozen."""
        self._call("speak")

    def forbid(self, **rule: str) -> None:
        """Deny matching requests: shell patterns on `user`, `verb`, `resource` (`pods/exec`), `namespace`, `name`."""
        self._call("forbid", **rule)

    def expire_credentials(self, user: str = "admin") -> None:
        self._call("expire", user=user)

    def clear(self) -> None:
        """Disarm all faults of exec streams, requests, permissions and credentials, but not of nodes and images."""
        self._call("clear")

    def end_streams(self, node: str, how: str) -> None:
        """End every open stream of a node now, in one of the ways of `tests.support.kubernetes.faults.ENDINGS`."""
        self._call("end_streams", node=node, how=how)

    def restart_kubelet(self, node: str, seconds: float = 1.0) -> None:
        self._call("restart_kubelet", node=node, seconds=seconds)

    def lose_node(self, node: str, *, processes_die: bool = True) -> None:
        """Make a node NotReady and unreachable; its pods stay Running until their tolerations end."""
        self._call("lose_node", node=node, processes_die=processes_die)

    def restore_node(self, node: str) -> None:
        """Bring a lost node back; its kubelet reports its pods' status and ends those marked for deletion."""
        self._call("find_node", node=node)

    def silence_node(self, node: str) -> None:
        """Drop all traffic to a node whose status stays Ready, until `restore_node`."""
        self._call("silence_node", node=node)

    def set_gpus(self, node: str, gpus: int) -> None:
        self._call("set_gpus", node=node, gpus=gpus)

    def oom_kill(self, pod: str, namespace: str = "default") -> None:
        self._call("oom_kill", pod=pod, namespace=namespace)

    def evict(self, pod: str, namespace: str = "default") -> None:
        """Evict the pod like the kubelet: killed, phase Failed, reason Evicted."""
        self._call("evict", pod=pod, namespace=namespace)

    def delete_pod(self, pod: str, namespace: str = "default", *, grace: int | None = None) -> None:
        """Delete the pod like `kubectl delete pod --wait=false`."""
        self._call("delete_pod", pod=pod, namespace=namespace, grace=grace)

    def kill(self, pod: str, pid: int, namespace: str = "default") -> None:
        """Kill one process of a pod, by a pid of `Cluster.processes`."""
        self._call("kill", pod=pod, namespace=namespace, pid=pid)

    def fail_pulls(self, pattern: str, cause: str) -> None:
        """Make pulls of matching images fail with one of `tests.support.kubernetes.node.images.CAUSES`."""
        self._call("fail_pulls", pattern=pattern, cause=cause)

    def repair_pulls(self, pattern: str) -> None:
        self._call("mend_pulls", pattern=pattern)
