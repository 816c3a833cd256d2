"""Credentials of kubectl, kept while they are valid: kubectl runs the kubeconfig's program for each of its commands.

The program's answer is in a file that only this user can read, in a temporary folder, until this process ends; kubectl
reads it with `cat`. If the program fails, or does not say when its answer expires, kubectl runs it itself.
"""

import copy
import dataclasses
import datetime
import functools
import json
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.records import schema
from bench.records.atomic_files import open_atomic
from remote.cluster.kubeconfig import Target, key_folder
from remote.hosts.base import HostError
from remote.hosts.pods.kubectl import Kubectl
from remote.hosts.process import CannotStart, run_program

MIN_VALIDITY_SEC = 60.0  # remaining for an answer that is used
MAX_KEPT_SEC = 240.0  # so that an answer which the server no longer accepts is not used for long
_UNUSABLE = (AttributeError, LookupError, TypeError, ValueError, OSError, HostError, CannotStart)
_TIMEOUT_SEC = 30.0
_logger = logging.getLogger(__name__)


@functools.cache
def kubectl_of(target: Target) -> Kubectl:
    """Return the kubectl of a target; all of this process share its credentials."""
    # Name the context, even if it is the current one, which may change during a run.
    kubectl = Kubectl(namespace=target.namespace, context=target.context, kubeconfig=target.kubeconfig)
    return dataclasses.replace(kubectl, cached_kubeconfig=_CredentialCache(target).kubeconfig)


class _CredentialCache:
    """Kubeconfig like the given kubectl's, whose program prints an answer that is renewed here."""

    def __init__(self, target: Target) -> None:
        self._target, self._lock = target, threading.Lock()
        self._is_usable, self._is_used, self._renew_at = True, False, 0.0
        self._path: Path | None = None
        self._program: Mapping[str, Any] = {}

    def kubeconfig(self) -> str | None:
        """Return the path of the kubeconfig; None if kubectl is to run the program itself, as for the first command."""
        with self._lock:
            if not self._is_used:  # it may be the only one, and writing the kubeconfig takes as long as two
                self._is_used = True
                return None
            if self._is_usable and time.time() >= self._renew_at:
                try:
                    self._renew()
                except _UNUSABLE as error:
                    _logger.info("credentials are not kept: %s", type(error).__name__)  # its text may hold them
                    self._is_usable = False
            return str(self._path) if self._is_usable else None

    def _renew(self) -> None:
        """Run the program. Raises an exception for an answer that cannot be kept."""
        if self._path is None:
            self._path = self._write_kubeconfig()
        spec = {"kind": "ExecCredential", "apiVersion": self._program["apiVersion"], "spec": {"interactive": False}}
        own = {str(pair["name"]): str(pair["value"]) for pair in self._program.get("env") or ()}
        answer = _output(
            [self._program["command"], *(self._program.get("args") or ())],
            {**os.environ, **own, "KUBERNETES_EXEC_INFO": json.dumps(spec)},
        )
        expires_at = datetime.datetime.fromisoformat(schema.parse_object(answer)["status"]["expirationTimestamp"])
        now = time.time()
        renew_at = min(now + MAX_KEPT_SEC, expires_at.timestamp() - MIN_VALIDITY_SEC)
        if renew_at <= now:
            raise ValueError("too short")
        _write_private(self._answer_path, answer)
        self._renew_at = renew_at

    @property
    def _answer_path(self) -> Path:
        return key_folder() / f"credential-{id(self)}.json"

    def _write_kubeconfig(self) -> Path:
        """Write the kubeconfig, of this context only. Raises LookupError without a program that can be run here."""
        document = copy.deepcopy(dict(self._target.config))
        user = document["users"][0]["user"]
        self._program = user["exec"]
        if self._program.get("provideClusterInfo") or self._program.get("interactiveMode") == "Always":
            raise LookupError("it needs the cluster or the terminal")
        user["exec"] = {
            "apiVersion": self._program["apiVersion"],
            "command": "cat",
            "args": [str(self._answer_path)],
            "interactiveMode": "Never",
        }
        path = key_folder() / f"kubeconfig-{id(self)}.json"
        _write_private(path, json.dumps(document).encode())
        return path


def _write_private(path: Path, content: bytes) -> None:
    with open_atomic(path, mode=0o600) as file:
        file.write(content)


def _output(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> bytes:
    completed = run_program(argv, label="a credential program", environment=environment, timeout_sec=_TIMEOUT_SEC)
    if completed.exit_code:
        raise ValueError("it failed")
    return completed.stdout
