"""Credentials of a kubeconfig's program, kept while they are valid: kubectl would run it for each of its commands.

kubectl reads the answer in a kubeconfig that only this user can read, in a temporary folder, until this process ends.
"""

import atexit
import base64
import contextlib
import dataclasses
import datetime
import functools
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.records import schema
from bench.records.atomic_files import open_atomic
from bench.records.scratch_folders import scratch_folder
from remote.cluster.kubeconfig import CREDENTIAL_TIMEOUT_SEC, Target
from remote.hosts.command import mask_opaque
from remote.hosts.host_protocol import CommandTimedOut, Completed, TooMuchOutput, collapse_whitespace
from remote.hosts.local_program import CannotStart, run_program
from remote.hosts.pods.kubectl import LOG_IN, Kubectl, Misconfigured

MIN_VALIDITY_SEC = 60.0  # remaining for an answer that is used
MAX_KEPT_SEC = 240.0  # so that an answer which the server no longer accepts is not used for long
_CERTIFICATE = {"clientCertificateData": "client-certificate-data", "clientKeyData": "client-key-data"}
_logger = logging.getLogger(__name__)


@functools.cache
def kubectl_of(target: Target) -> Kubectl:
    """Return the kubectl of a target; all of this process share its credentials."""
    # Name the context, even if it is the current one, which may change during a run.
    kubectl = Kubectl(namespace=target.namespace, context=target.context, kubeconfig=target.kubeconfig)
    return dataclasses.replace(kubectl, cached_kubeconfig=credentials_of(target).kubeconfig)


@functools.cache
def credentials_of(target: Target) -> "Credentials":
    return Credentials(target)


@functools.cache
def private_folder() -> Path:
    """Create the folder for credentials and private keys, which clients read from files; it is removed at exit."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(scratch_folder("qlora-fleet-kubeconfig-"))


class Credentials:
    """Answers of the program of a target's kubeconfig. Thread-safe."""

    def __init__(self, target: Target) -> None:
        self._target, self._lock = target, threading.RLock()
        self._program: Mapping[str, Any] = target.user_config.get("exec") or {}
        self._status: Mapping[str, Any] | None = None
        self._written: Mapping[str, Any] | None = None
        self._renew_at = 0.0

    def status(self) -> Mapping[str, Any]:
        """Return the status of the program's ExecCredential, renewed before it expires. Raises Misconfigured."""
        with self._lock:
            if self._status is not None and time.time() < self._renew_at:
                return self._status
            answer = self._run()
            try:
                self._status = status = dict(schema.parse_object(answer)["status"])
                if not status.keys() & {"token", "clientCertificateData"}:
                    raise LookupError("token")
                expires = status.get("expirationTimestamp")
                until = float("inf") if expires is None else datetime.datetime.fromisoformat(expires).timestamp()
            except (LookupError, TypeError, ValueError) as error:
                raise self._error("did not print a credential") from error
            self._renew_at = min(time.time() + MAX_KEPT_SEC, until - MIN_VALIDITY_SEC)
            return status

    def user(self) -> dict[str, Any]:
        """Return the kubeconfig's user, with the program's answer in its place. Raises Misconfigured."""
        user = dict(self._target.user_config)
        if user.pop("exec", None):
            status = self.status()
            user |= {"token": str(status["token"])} if "token" in status else {}
            for theirs, ours in _CERTIFICATE.items():
                if theirs in status:
                    user[ours] = base64.b64encode(str(status[theirs]).encode()).decode()
        return user

    def kubeconfig(self) -> str | None:
        """Return the path of a kubeconfig with the kept answer; None if kubectl is to run the program itself."""
        with self._lock:
            if not self._program:
                return None
            path = private_folder() / f"kubeconfig-{id(self)}.json"
            try:
                users = [{"name": self._target.user, "user": self.user()}]
                if self._written is not self._status:
                    with open_atomic(path, mode=0o600) as file:
                        file.write(json.dumps({**self._target.config, "users": users}).encode())
                    self._written = self._status
            except (Misconfigured, OSError) as error:
                _logger.info("credentials are not kept: %s", type(error).__name__)  # its text may hold them
                return None
            return str(path) if time.time() < self._renew_at else None

    def _run(self) -> bytes:
        """Run the program, on this terminal if it may ask for a login. Raises Misconfigured."""
        program = self._program
        is_asking = program.get("interactiveMode") != "Never" and sys.stdin is not None and sys.stdin.isatty()
        spec: dict[str, Any] = {"interactive": is_asking}
        if program.get("provideClusterInfo"):
            spec["cluster"] = dict(self._target.cluster_config)
        try:
            info = {"kind": "ExecCredential", "apiVersion": program["apiVersion"], "spec": spec}
            own = {str(pair["name"]): str(pair["value"]) for pair in program.get("env") or ()}
            environment = {**os.environ, **own, "KUBERNETES_EXEC_INFO": json.dumps(info)}
            argv = [program["command"], *(program.get("args") or ())]
        except (LookupError, TypeError) as error:
            raise self._error(f"is incomplete in the kubeconfig ({error})") from error
        try:
            completed = _run_on_terminal(argv, environment) if is_asking else _run_hidden(argv, environment)
        except (CommandTimedOut, subprocess.TimeoutExpired) as error:
            detail = f"timed out after {CREDENTIAL_TIMEOUT_SEC:g} s; run it by hand to see what it waits for"
            raise self._error(detail) from error
        except (CannotStart, OSError, TooMuchOutput) as error:
            raise self._error(f"cannot be used: {collapse_whitespace(error)}") from error
        if completed.exit_code:
            detail = mask_opaque(collapse_whitespace(completed.stderr.decode(errors="replace")))
            raise self._error(f"ended with exit {completed.exit_code}: {detail}")
        return completed.stdout

    def _error(self, problem: str) -> Misconfigured:
        name = self._program.get("command", "?")
        return Misconfigured(
            f"context {self._target.context}: the kubeconfig's credential program {name} {problem}", remedy=LOG_IN
        )


def _run_hidden(argv: list[str], environment: Mapping[str, str]) -> Completed:
    return run_program(argv, label=argv[0], environment=environment, timeout_sec=CREDENTIAL_TIMEOUT_SEC)


def _run_on_terminal(argv: list[str], environment: Mapping[str, str]) -> Completed:
    ended = subprocess.run(
        argv, env=dict(environment), stdout=subprocess.PIPE, timeout=CREDENTIAL_TIMEOUT_SEC, check=False
    )
    return Completed(exit_code=ended.returncode, stdout=ended.stdout, stderr=b"")
