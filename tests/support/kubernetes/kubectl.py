"""kubectl with one kubeconfig: run commands, apply and read objects, and wait for conditions."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.kubernetes.api.answers import Json

KUBECTL_SEC = 120.0
NOISE = b"Unknown stream id 1, discarding message\n"
PASSWORD_VARIABLE = "QLORA_FLEET_TEST_PASSWORD"


class Kubectl:
    """kubectl without the caller's own configuration. `patience_sec` is the timeout of all waits."""

    patience_sec = 60.0
    _poll_sec = 0.5

    def __init__(self, kubeconfig: Path, cache: Path) -> None:
        self.kubeconfig = kubeconfig
        self._cache = cache

    @property
    def environment(self) -> dict[str, str]:
        """Environment for kubectl, `inv` and other programs that use this cluster."""
        own = {name: value for name, value in os.environ.items() if name != PASSWORD_VARIABLE}
        return {**own, "KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(self._cache)}

    def kubectl(
        self, *arguments: str, stdin: bytes | None = None, timeout_sec: float = KUBECTL_SEC
    ) -> subprocess.CompletedProcess[bytes]:
        """Run kubectl without checking its exit code.

        Removes from its standard error a harmless line that it sometimes prints for WebSockets on a busy machine.
        """
        feed: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
        argv = ("kubectl", *arguments)
        done = subprocess.run(argv, env=self.environment, capture_output=True, timeout=timeout_sec, check=False, **feed)
        lines = done.stderr.splitlines(keepends=True)
        done.stderr = b"".join(line for line in lines if not line.endswith(NOISE))
        return done

    def start_kubectl(self, *arguments: str, **popen: Any) -> subprocess.Popen[bytes]:
        """Start kubectl without waiting for it."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
        return subprocess.Popen(("kubectl", *arguments), env=self.environment, **pipes)

    def output(self, *arguments: str, stdin: bytes | None = None) -> str:
        """Run kubectl, assert success and return its standard output."""
        done = self.kubectl(*arguments, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr.decode()}"
        return done.stdout.decode()

    def apply(self, *objects: Json) -> None:
        """Apply objects in order. Raises AssertionError if it fails."""
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        self.output(
            "apply",
            "--server-side",
            "--force-conflicts",
            "--field-manager=tests",
            "-f",
            "-",
            stdin=json.dumps(listed).encode(),
        )

    def objects(self, key: str, namespace: str = "") -> list[Json]:
        """Return all objects of a kind (`pods`, `jobs.batch`); an empty namespace means all."""
        scope = f"--namespace={namespace}" if namespace else "--all-namespaces"
        return json.loads(self.output("get", key, scope, "-o", "json"))["items"]  # type: ignore[no-any-return]

    def pod(self, name: str, namespace: str = "default") -> Json | None:
        """Return a pod's object, or None."""
        return next((pod for pod in self.objects("pods", namespace) if pod["metadata"]["name"] == name), None)

    def wait_until(self, condition: Callable[[], Any], description: str) -> Any:
        """Return the first true value of `condition`. Raises AssertionError after `patience_sec`."""
        deadline = time.monotonic() + self.patience_sec
        while time.monotonic() < deadline:
            value = condition()
            if value:
                return value
            time.sleep(self._poll_sec)
        raise AssertionError(f"waited {self.patience_sec:.0f} s for {description}\n{self.diagnosis()}")

    def diagnosis(self) -> str:
        """Return the latest events, for the message of a failed wait."""
        return self.kubectl("get", "events", "-A", "--sort-by=.lastTimestamp").stdout.decode()[-2000:]

    def wait_for_pod(self, name: str, namespace: str = "default", *, phase: str = "Running") -> Json:
        """Wait until the pod has reached `phase` (and is Ready, for Running), and return it."""

        def reached() -> Json | None:
            pod = self.pod(name, namespace)
            if pod is None or pod.get("status", {}).get("phase") != phase:
                return None
            conditions = {c["type"]: c["status"] for c in pod["status"]["conditions"]}
            return pod if phase != "Running" or conditions.get("Ready") == "True" else None

        return self.wait_until(reached, f"pod {namespace}/{name} to be {phase}")  # type: ignore[no-any-return]
