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
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from tests.support.kubernetes.api.answers import TOKEN, Json
from tests.support.paths import ROOT

_STOP_SEC = 30.0
_KUBECTL_SEC = 120.0


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


class Cluster:
    """The fake cluster in a separate process; a context manager. Skips the test if this machine cannot run it.

    `nodes` is the number of nodes, each with a GPU and tainted like OKE's GPU nodes. `image_paths` are folders that
    pods see under the same path, read-only (like this repository and the running Python). `image_environment` are
    variables of every image. `signer` is a key's id and its public half: a token signed with this key, like OKE's,
    authenticates as admin.
    `toleration_scale` multiplies tolerationSeconds, to shorten the 300 s until eviction from a lost node.
    """

    context = "tests"
    patience_sec = 60.0  # the timeout of all waits

    def __init__(
        self,
        *,
        nodes: int = 4,
        signer: tuple[str, str] | None = None,
        image_paths: Iterable[Path | str] = (),
        image_environment: dict[str, str] | None = None,
        toleration_scale: float = 1.0,
    ) -> None:
        if reason := unavailable_reason():
            pytest.skip(reason)
        self._folder = Path(tempfile.mkdtemp(prefix="tests-cluster-"))
        self._folder.chmod(0o755)  # pods run as other users
        self.kubeconfig, self._cache = self._folder / "kubeconfig", self._folder / "kube-cache"
        self._configuration = {
            "state": str(self._folder),
            "nodes": nodes,
            "signer": signer,
            "image_paths": [str(ROOT), *map(str, image_paths)],
            "image_environment": image_environment or {},
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

    def kubeconfig_text(self, *, context: str = "tests") -> str:
        """Return the kubeconfig (JSON is YAML) of the user admin."""
        cluster = {"server": self.server, "certificate-authority": str(self._folder / "ca.crt")}
        names = {"cluster": "tests", "user": "admin", "namespace": "default"}
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "tests", "cluster": cluster}],
                "users": [{"name": "admin", "user": {"token": TOKEN}}],
                "contexts": [{"name": context, "context": names}],
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

    def call(self, name: str, /, *positional: Any, **arguments: Any) -> Any:
        """Call a method of `FakeCluster` in the server's process, bypassing the API."""
        response = self._request({"call": name, "positional": positional, "arguments": arguments})
        if "error" in response:
            raise RuntimeError(response["error"])
        return response["result"]

    # kubectl

    @property
    def environment(self) -> dict[str, str]:
        """Environment for kubectl, `inv` and other programs that use this cluster."""
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(self._cache)}

    def kubectl(self, *arguments: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        """Run kubectl without checking its exit code."""
        feed: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
        argv = ("kubectl", *arguments)
        return subprocess.run(
            argv, env=self.environment, capture_output=True, timeout=_KUBECTL_SEC, check=False, **feed
        )

    def output(self, *arguments: str, stdin: bytes | None = None) -> str:
        """Run kubectl, assert success and return its standard output."""
        done = self.kubectl(*arguments, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr.decode()}"
        return done.stdout.decode()

    def apply(self, *objects: Json) -> None:
        """Apply objects in order. Raises AssertionError if it fails."""
        flags = ("--server-side", "--force-conflicts", "--field-manager=tests", "-f", "-")
        self.output("apply", *flags, stdin=yaml.safe_dump_all(objects).encode())

    def wait_until(self, condition: Callable[[], Any], description: str) -> Any:
        """Return the first true value of `condition`. Raises AssertionError after `patience_sec`."""
        deadline = time.monotonic() + self.patience_sec
        while time.monotonic() < deadline:
            value = condition()
            if value:
                return value
            time.sleep(0.05)
        log = (self._folder / "server.log").read_text()[-2000:]
        raise AssertionError(f"waited {self.patience_sec:.0f} s for {description}\n{log}")

    # Inspection

    def pod(self, name: str, namespace: str = "default") -> Json | None:
        """Return a pod's stored object, or None."""
        return self.call("find", "pods", namespace, name)  # type: ignore[no-any-return]

    def objects(self, key: str, namespace: str = "") -> list[Json]:
        """Return all objects of a kind (`pods`, `jobs.batch`); an empty namespace means all."""
        return self.call("list", key, namespace)  # type: ignore[no-any-return]

    def requests(self) -> list[str]:
        """Return every request so far, as `METHOD path?query`."""
        return self.call("requests")  # type: ignore[no-any-return]

    def processes(self, pod: str, namespace: str = "default") -> dict[int, list[str]]:
        """Return the live processes of a pod: pid on this machine to argv."""
        return dict(self.call("processes", pod, namespace))

    def claim_folder(self, claim: str, namespace: str = "default") -> Path:
        """Return the folder of a claim's files on this machine."""
        return self._folder / "claims" / namespace / claim


class Faults:
    """Switches for faults: the methods of `FakeCluster`, called in the server's process."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._call, name)
