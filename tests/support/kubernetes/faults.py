"""What goes wrong, and when: faults are armed by tests and counted, so that they always strike at the same place."""

import asyncio
import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

ENDINGS = (
    "close-1000-without-status",  # the kubelet or containerd died: exit 0 in every client
    "status-empty-frame",  # the same from an empty frame on the error channel
    "close-1001",
    "close-1011",
    "close-empty",
    "tcp-drop",  # FIN without a Close frame
    "tcp-reset",
    "status-not-json",
    "status-failure-no-exit-code",
    "only-success-no-close",
    "freeze",  # the stream stays open and nothing moves any more, pongs included
    "internal-error",  # a Status of reason InternalError, then Close 1000
    "stdin-cut",  # containerd closes the process's input early, and everything else ends well
)


@dataclass(kw_only=True)
class Counted:
    nth: int = 1
    times: int = 1
    seen: int = 0
    struck: int = 0


Fault = TypeVar("Fault", bound=Counted)


def _due(matching: Iterable[Fault]) -> Fault | None:
    """Count what happens on every armed fault that matches; the first one whose turn it is."""
    found = None
    for fault in matching:
        fault.seen += 1
        if found is None and fault.nth <= fault.seen < fault.nth + fault.times:
            fault.struck += 1
            found = fault
    return found


@dataclass(kw_only=True)
class ExecFault(Counted):
    """End the `nth` matching exec (counted from the arming, 1 is the next) and the `times - 1` after it as `how` says.

    It strikes after exactly `after_stdout_bytes` of standard output or `after_stdin_bytes` of input; with neither, when
    the process has ended and all its output is out, in the place of its Status. `stdin-cut` needs `after_stdin_bytes`
    and lets the process end as it will; the process lives on after every other, as when only the stream is lost.
    """

    how: str
    pod: str = "*"
    after_stdout_bytes: int | None = None
    after_stdin_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.how not in ENDINGS:
            raise ValueError(f"{self.how!r} is no ending; there are {', '.join(ENDINGS)}")


@dataclass(kw_only=True)
class AnswerFault(Counted):
    """Answer the `nth` matching request and the `times - 1` after it with `status`.

    `path` is a shell pattern on the whole path.
    """

    status: int
    message: str
    path: str


@dataclass(kw_only=True)
class Faults:
    """All that is armed just now."""

    execs: list[ExecFault] = field(default_factory=list)
    answers: list[AnswerFault] = field(default_factory=list)
    denied: list[dict[str, str]] = field(default_factory=list)
    expired: set[str] = field(default_factory=set)
    moving: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.moving.set()

    def of_exec(self, pod: str) -> ExecFault | None:
        return _due(exec for exec in self.execs if fnmatch.fnmatch(pod, exec.pod))

    def of_request(self, path: str) -> AnswerFault | None:
        return _due(answer for answer in self.answers if fnmatch.fnmatch(path, answer.path))

    def denies(self, **asked: Any) -> bool:
        """Whether a rule refuses `verb` on `resource` (`pods/exec`) to `user`; each rule is of shell patterns."""
        return any(all(fnmatch.fnmatch(str(asked[key]), rule[key]) for key in rule) for rule in self.denied)

    def clear(self) -> None:
        self.execs.clear()
        self.answers.clear()
        self.denied.clear()
        self.expired.clear()
        self.moving.set()
