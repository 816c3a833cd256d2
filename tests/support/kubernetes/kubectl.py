"""kubectl with one kubeconfig: typing a command, applying objects, looking at what is there, and waiting for it."""

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
    """kubectl, and nothing of the caller's own configuration. `patience_sec`: how long what was asked for may take."""

    patience_sec = 60.0
    _every_sec = 0.5

    def __init__(self, kubeconfig: Path, cache: Path) -> None:
        self.kubeconfig = kubeconfig
        self._cache = cache

    @property
    def environment(self) -> dict[str, str]:
        """For kubectl, `inv`, or whatever else is to find this cluster."""
        own = {name: value for name, value in os.environ.items() if name != PASSWORD_VARIABLE}
        return {**own, "KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(self._cache)}

    def kubectl(
        self, *words: str, stdin: bytes | None = None, timeout_sec: float = KUBECTL_SEC
    ) -> subprocess.CompletedProcess[bytes]:
        """Run kubectl to its end; its exit code is the caller's business. Its standard error is without a line that it
        now and then prints of its own over WebSocket, on a busy machine; the streams are whole."""
        feed: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
        argv = ("kubectl", *words)
        done = subprocess.run(argv, env=self.environment, capture_output=True, timeout=timeout_sec, check=False, **feed)
        lines = done.stderr.splitlines(keepends=True)
        done.stderr = b"".join(line for line in lines if not line.endswith(NOISE))
        return done

    def start_kubectl(self, *words: str, **popen: Any) -> subprocess.Popen[bytes]:
        """The same, not waited for."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
        return subprocess.Popen(("kubectl", *words), env=self.environment, **pipes)

    def said(self, *words: str, stdin: bytes | None = None) -> str:
        """Standard output of a kubectl that must succeed."""
        done = self.kubectl(*words, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr.decode()}"
        return done.stdout.decode()

    def apply(self, *objects: Json) -> None:
        """Apply objects, client side, one after the other; fails loudly."""
        together = {"apiVersion": "v1", "kind": "List", "items": objects}
        self.said("apply", "-f", "-", stdin=json.dumps(together).encode())

    def objects(self, key: str, namespace: str = "") -> list[Json]:
        """All objects of a kind (`pods`, `jobs.batch`); an empty namespace means all."""
        where = f"--namespace={namespace}" if namespace else "--all-namespaces"
        return json.loads(self.said("get", key, where, "-o", "json"))["items"]  # type: ignore[no-any-return]

    def pod(self, name: str, namespace: str = "default") -> Json | None:
        """A pod's object, or None."""
        return next((pod for pod in self.objects("pods", namespace) if pod["metadata"]["name"] == name), None)

    def wait_until(self, holds: Callable[[], Any], what: str) -> Any:
        """The first true value of `holds`; AssertionError when there is none in time."""
        deadline = time.monotonic() + self.patience_sec
        while time.monotonic() < deadline:
            found = holds()
            if found:
                return found
            time.sleep(self._every_sec)
        raise AssertionError(f"waited {self.patience_sec:.0f} s for {what}\n{self.last_words()}")

    def last_words(self) -> str:
        """What may say why something did not come."""
        return self.kubectl("get", "events", "-A", "--sort-by=.lastTimestamp").stdout.decode()[-2000:]

    def wait_for_pod(self, name: str, namespace: str = "default", *, phase: str = "Running") -> Json:
        """The pod once it has reached a phase (and is Ready, for Running)."""

        def reached() -> Json | None:
            pod = self.pod(name, namespace)
            if pod is None or pod.get("status", {}).get("phase") != phase:
                return None
            conditions = {c["type"]: c["status"] for c in pod["status"]["conditions"]}
            return pod if phase != "Running" or conditions.get("Ready") == "True" else None

        return self.wait_until(reached, f"pod {namespace}/{name} to be {phase}")  # type: ignore[no-any-return]
