"""Faults of the API server and of pulls: armed by tests, and triggered by counts, so that they are reproducible."""

import asyncio
import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

# The runtime's recorded messages by cause.
_PULL = 'failed to pull and unpack image "{image}": failed to resolve reference "{image}": failed to'
PULL_FAILURES = {
    "timeout": f"{_PULL} do request: Head https://{{image}}: dial tcp 10.99.0.105:443: i/o timeout",
    "token-401-wrong-user-form": f"{_PULL} authorize: failed to fetch oauth token: unexpected status: 401 Unauthorized",
}
ENDINGS = (
    "close-1000-without-status",  # the kubelet or containerd died: every client reports exit 0
    "tcp-reset",
    "only-success-no-close",
    "freeze",  # the stream stays open without any more data or pongs
    "internal-error",  # a Status of reason InternalError, then Close 1000
    "stdin-cut",  # containerd closes the process's input early; the rest works
)


@dataclass(kw_only=True)
class CountedFault:
    nth: int = 1
    times: int = 1
    seen: int = 0
    struck: int = 0


Fault = TypeVar("Fault", bound=CountedFault)


def _due(matching: Iterable[Fault]) -> Fault | None:
    """Count one event for all matching faults; return the first one that is due."""
    due = None
    for fault in matching:
        fault.seen += 1
        if due is None and fault.nth <= fault.seen < fault.nth + fault.times:
            fault.struck += 1
            due = fault
    return due


@dataclass(kw_only=True)
class ExecFault(CountedFault):
    """End the `nth` matching exec (1 is the next) and the `times - 1` after it in the way `how`, one of ENDINGS.

    The stream ends after exactly `after_stdout_bytes` of output or `after_stdin_bytes` of input; with neither, instead
    of the Status after the process's end. `stdin-cut` needs `after_stdin_bytes` and does not end the stream. After all
    others the process continues, as when only the stream is lost.
    """

    how: str
    pod: str = "*"
    after_stdout_bytes: int | None = None
    after_stdin_bytes: int | None = None


@dataclass(kw_only=True)
class AnswerFault(CountedFault):
    """Answer the `nth` matching request and the `times - 1` after it with `status`.

    `path` is a shell pattern on the whole path, `method` one on the method.
    """

    status: int
    message: str
    path: str
    method: str = "*"


@dataclass(kw_only=True)
class Faults:
    """The armed faults. `responsive` is cleared while the server answers no requests."""

    execs: list[ExecFault] = field(default_factory=list)
    answers: list[AnswerFault] = field(default_factory=list)
    denied: list[dict[str, str]] = field(default_factory=list)
    pulls: dict[str, str] = field(default_factory=dict)
    are_credentials_expired: bool = False
    responsive: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.responsive.set()

    # Arming, by tests. Streams and requests are counted from then on.

    def exec(self, how: str, **fields: Any) -> None:
        """Break exec streams, in a way of ENDINGS."""
        self.execs.append(ExecFault(how=how, **fields))

    def fail_requests(self, **fields: Any) -> None:
        """Make requests fail; the fields are those of `AnswerFault`."""
        self.answers.append(AnswerFault(**fields))

    def exec_strikes(self) -> int:
        """Return how often the armed faults of exec streams have occurred."""
        return sum(fault.struck for fault in self.execs)

    def forbid(self, **rule: str) -> None:
        """Deny matching requests: shell patterns on `verb`, `resource` (`pods/exec`), `namespace`, `name`."""
        self.denied.append(rule)

    def expire_credentials(self) -> None:
        self.are_credentials_expired = True

    def fail_pulls(self, pattern: str, cause: str) -> None:
        """Make pulls of images that match the shell pattern fail for a cause of PULL_FAILURES."""
        self.pulls[pattern] = PULL_FAILURES[cause]

    def repair_pulls(self, pattern: str) -> None:
        self.pulls.pop(pattern, None)

    def clear(self) -> None:
        """Disarm all faults of exec streams, requests, permissions and credentials, but not of nodes and images."""
        for armed in (self.execs, self.answers, self.denied):
            armed.clear()
        self.are_credentials_expired = False
        self.responsive.set()

    # Striking, by the server

    def of_exec(self, pod: str) -> ExecFault | None:
        return _due(fault for fault in self.execs if fnmatch.fnmatch(pod, fault.pod))

    def of_request(self, method: str, path: str) -> AnswerFault | None:
        armed = (fault for fault in self.answers if fnmatch.fnmatch(method, fault.method))
        return _due(fault for fault in armed if fnmatch.fnmatch(path, fault.path))

    def of_pull(self, image: str) -> str | None:
        """Return the runtime's message if pulls of this image fail, otherwise None."""
        return next((text.format(image=image) for p, text in self.pulls.items() if fnmatch.fnmatch(image, p)), None)

    def denies(self, **asked: Any) -> bool:
        """Return whether a rule of shell patterns denies `verb` on `resource` (`pods/exec`)."""
        return any(all(fnmatch.fnmatch(str(asked[key]), rule[key]) for key in rule) for rule in self.denied)
