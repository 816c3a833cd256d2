"""Failures of work on the build VM and of a registry, by kind, and their retries."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")
MAX_ATTEMPTS = 5


class VmAgentError(Exception):
    """Error raised if a job fails.

    `kind` is full, transient, unauthorized, forbidden, absent, usage, refused, changed, stopped or failed.
    """

    def __init__(self, kind: str, problem: str, *, remedy: str = "") -> None:
        super().__init__(f"{problem}; {remedy}" if remedy else problem)
        self.kind, self.problem, self.remedy = kind, problem, remedy

    def to_json(self) -> dict[str, str]:
        remedy = {"remedy": self.remedy} if self.remedy else {}
        return {"kind": self.kind, "message": self.problem, **remedy}


def with_retries(action: Callable[[], Result], first_wait_sec: float, log: Callable[[str], object]) -> Result:
    """Run `action`, and log and retry transient failures, MAX_ATTEMPTS in total, with doubled pauses.

    Raises the errors of `action`.
    """
    for attempt in range(1, MAX_ATTEMPTS):
        try:
            return action()
        except VmAgentError as error:
            if error.kind != "transient":
                raise
            log(f"{error}; retrying ({attempt} of {MAX_ATTEMPTS - 1})")
        time.sleep(first_wait_sec * 2 ** (attempt - 1))
    return action()


def engine_access_error(complaint: str) -> VmAgentError | None:
    """Return the error, with its remedy, if the engine cannot be accessed at all; None for any other complaint."""
    text = complaint.lower()
    is_connection = any(phrase in text for phrase in ("trying to connect", "docker.sock", "raw stream connection"))
    if "permission denied" in text and is_connection:
        return VmAgentError(
            "usage",
            "this user may not use the engine",
            remedy="run there: sudo usermod -aG docker $USER, and log in again",
        )
    if re.search("cannot connect to the docker daemon|is the docker daemon running|raw stream connection", text):
        remedy = "start it (sudo systemctl start docker), or set build.host to another VM"
        return VmAgentError("transient", "the engine does not respond at its socket", remedy=remedy)
    return None
