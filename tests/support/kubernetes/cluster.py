"""What tests use: a cluster to start, to point kubectl at, and to break on purpose."""

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


def unavailable() -> str:
    """Why no cluster can be started on this machine; empty when one can."""
    if sys.platform != "linux":
        return "the tests' own cluster needs Linux"
    if os.geteuid() != 0:
        return "the tests' own cluster needs root: its pods live in namespaces of their own"
    missing = [program for program in ("kubectl", "nsenter", "tini") if shutil.which(program) is None]
    if missing:
        return f"the tests' own cluster needs {', '.join(missing)}"
    trial = subprocess.run(["unshare", "-m", "-p", "-u", "-i", "--fork", "true"], capture_output=True, check=False)
    return "" if trial.returncode == 0 else f"namespaces cannot be made here: {trial.stderr.decode().strip()}"


class Cluster(Kubectl):
    """The tests' own cluster in a process of its own; use as a context manager. Skips the test where there can be none.

    `nodes` machines with a GPU each, tainted as OKE's GPU nodes are. `image_paths` are folders that pods see at the
    same place, read-only (this repository and the running Python always are); `image_environment` are variables of
    every image. `signer` is a key's name and its public half: whoever signs a token with it, as OKE's are signed, is
    admin.
    `disk_bytes` makes every emptyDir a filesystem of that size (a true "no space left on device").
    `toleration_scale` multiplies tolerationSeconds, so that eviction from a lost node need not take 300 s.
    """

    context = "tests"
    _every_sec = 0.05

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
        if why := unavailable():
            pytest.skip(why)
        self._folder = Path(tempfile.mkdtemp(prefix="tests-cluster-"))
        self._folder.chmod(0o755)  # pods of other users pass through it
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
            self.port = self._ask(self._configuration)["port"]
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
    def context_words(self) -> str:
        """How `inv` names this cluster."""
        return f"context {self.context} (cluster tests at {self.server}, user admin)"

    def kubeconfig_text(self, user: str = "admin", *, context: str = "tests", namespace: str = "default") -> str:
        """A kubeconfig (JSON is YAML) for one of `users`."""
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

    def by_program(self) -> Path:
        """A kubeconfig whose credentials come from a program, as OKE's do; `break_program` makes that fail."""
        made = json.loads(self.kubeconfig_text())
        token = made["users"][0]["user"]["token"]
        program = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}
        credential = {"apiVersion": program["apiVersion"], "kind": "ExecCredential", "status": {"token": token}}
        path = self._folder / "credentials"
        broken = shlex.quote(str(self._broken_program))
        path.write_text(
            f"#!/bin/sh\nif [ -e {broken} ]; then cat {broken} >&2; exit 1; fi\n"
            f"echo {shlex.quote(json.dumps(credential))}\n"
        )
        path.chmod(0o755)
        made["users"][0]["user"] = {"exec": {**program, "command": str(path)}}
        kubeconfig = self._folder / "kubeconfig-by-program"
        kubeconfig.write_text(json.dumps(made))
        return kubeconfig

    @property
    def _broken_program(self) -> Path:
        return self._folder / "credentials.broken"

    def break_program(self) -> None:
        """From now on the program of `by_program` writes this to standard error and exits with 1."""
        self._broken_program.write_text("ServiceError: NotAuthenticated (Forbidden), connection refused\n")

    def mend_program(self) -> None:
        self._broken_program.unlink(missing_ok=True)

    def _ask(self, what: Json) -> Json:
        process = self._process
        assert process is not None, "the cluster has not been started"
        assert process.stdin is not None
        assert process.stdout is not None
        with self._lock:
            try:
                process.stdin.write(json.dumps(what) + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except BrokenPipeError:
                line = ""
        if not line:
            raise RuntimeError(f"the tests' API server has died:\n{(self._folder / 'server.log').read_text()[-4000:]}")
        return json.loads(line)  # type: ignore[no-any-return]

    def call(self, name: str, /, **arguments: Any) -> Any:
        """Call the server's process past the API; see `World`."""
        answer = self._ask({"call": name, "arguments": arguments})
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]

    # Looking

    def pod(self, name: str, namespace: str = "default") -> Json | None:
        """A pod's object as stored, or None."""
        return self.call("get", key="pods", name=name, namespace=namespace)  # type: ignore[no-any-return]

    def objects(self, key: str, namespace: str = "") -> list[Json]:
        """All objects of a kind (`pods`, `jobs.batch`); an empty namespace means all."""
        return self.call("list", key=key, namespace=namespace)  # type: ignore[no-any-return]

    def requests(self) -> list[str]:
        """Every request so far, as `METHOD path?query`."""
        return self.call("requests")  # type: ignore[no-any-return]

    def processes(self, pod: str, namespace: str = "default") -> dict[int, list[str]]:
        """The live processes of a pod: pid on this machine to argv."""
        return dict(self.call("processes", pod=pod, namespace=namespace))

    def claim_folder(self, claim: str, namespace: str = "default") -> Path:
        """Where the files of a claim lie on this machine."""
        return self._folder / "claims" / namespace / claim

    def last_words(self) -> str:
        return (self._folder / "server.log").read_text()[-2000:]


class Faults:
    """Every fault as a switch. Streams and requests are counted from the arming: `nth=1` is the next one."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def exec(self, how: str, **where: Any) -> None:
        """Arm an ending of exec streams; the fields are those of `tests.support.kubernetes.faults.ExecFault`."""
        self._call("exec", how=how, **where)

    def answer(self, **what: Any) -> None:
        """Arm a wrong or late answer; the fields are those of `tests.support.kubernetes.faults.AnswerFault`."""
        self._call("answer", **what)

    def struck(self) -> dict[str, int]:
        """How often armed faults have struck: `execs` and `answers`."""
        return self._call("struck")  # type: ignore[no-any-return]

    def server_gone(self, seconds: float | None = None) -> None:
        """The API server dies: connections are cut, new ones refused; back after `seconds`, or by `server_back`."""
        self._call("gone", seconds=seconds)

    def server_back(self) -> None:
        self._call("back")

    def silence(self) -> None:
        """A black hole: connections stay, nothing is answered, every stream is frozen for good."""
        self._call("silence")

    def speak(self) -> None:
        """Requests are answered again, those that waited included; frozen streams stay frozen."""
        self._call("speak")

    def forbid(self, **rule: str) -> None:
        """Deny what matches: shell patterns on `user`, `verb`, `resource` (`pods/exec`), `namespace`, `name`."""
        self._call("forbid", **rule)

    def expire_credentials(self, user: str = "admin") -> None:
        self._call("expire", user=user)

    def clear(self) -> None:
        """Disarm all of the above. Nodes and images stay as they are."""
        self._call("clear")

    def end_streams(self, node: str, how: str) -> None:
        """End every open stream of a node now, as one of `tests.support.kubernetes.faults.ENDINGS`."""
        self._call("end_streams", node=node, how=how)

    def restart_kubelet(self, node: str, seconds: float = 1.0) -> None:
        self._call("restart_kubelet", node=node, seconds=seconds)

    def lose_node(self, node: str, *, processes_die: bool = True) -> None:
        """The node is NotReady and unreachable; its pods go on saying Running until their tolerations end."""
        self._call("lose_node", node=node, processes_die=processes_die)

    def find_node(self, node: str) -> None:
        """The lost node is back; its kubelet reports what became of its pods, and ends those marked for deletion."""
        self._call("find_node", node=node)

    def silence_node(self, node: str) -> None:
        """A black hole before one node that nobody has noticed yet; ends with `find_node`."""
        self._call("silence_node", node=node)

    def set_gpus(self, node: str, gpus: int) -> None:
        self._call("set_gpus", node=node, gpus=gpus)

    def oom_kill(self, pod: str, namespace: str = "default") -> None:
        self._call("oom_kill", pod=pod, namespace=namespace)

    def evict(self, pod: str, namespace: str = "default") -> None:
        """The kubelet evicts the pod: killed, phase Failed, reason Evicted."""
        self._call("evict", pod=pod, namespace=namespace)

    def delete_pod(self, pod: str, namespace: str = "default", *, grace: int | None = None) -> None:
        """As `kubectl delete pod --wait=false`."""
        self._call("delete_pod", pod=pod, namespace=namespace, grace=grace)

    def kill(self, pod: str, pid: int, namespace: str = "default") -> None:
        """SIGKILL one process of a pod (`Cluster.processes` names them)."""
        self._call("kill", pod=pod, namespace=namespace, pid=pid)

    def fail_pulls(self, pattern: str, cause: str) -> None:
        """Pulls of images that match fail for one of `tests.support.kubernetes.node.images.CAUSES`."""
        self._call("fail_pulls", pattern=pattern, cause=cause)

    def mend_pulls(self, pattern: str) -> None:
        self._call("mend_pulls", pattern=pattern)
