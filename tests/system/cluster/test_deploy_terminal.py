"""On a terminal: the live table, questions that are asked, a password that is not echoed, and Ctrl-C."""

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Callable

import pytest
import yaml

from tests.system.cluster.conftest import INV, Operator


class Terminal:
    """`inv` on a pseudo-terminal. What it shows is read until something is there, with a deadline."""

    def __init__(self, operator: Operator, *words: str) -> None:
        (operator.project / "own.yaml").write_text(yaml.safe_dump(operator.settings))
        self._screen, side = pty.openpty()
        self.shown = ""
        self._process = subprocess.Popen(
            (str(INV), "-f", "own.yaml", *words),
            cwd=operator.project,
            env={**operator.environment(), "TERM": "xterm", "COLUMNS": "160"},
            stdin=side,
            stdout=side,
            stderr=side,
            start_new_session=True,
        )
        os.close(side)

    def until(self, holds: Callable[[str], bool], what: str, within_sec: float = 60.0) -> None:
        deadline = time.monotonic() + within_sec
        while not holds(self.shown):
            left = deadline - time.monotonic()
            assert left > 0, f"waited for {what}; shown so far:\n{self.shown}"
            if select.select([self._screen], [], [], left)[0]:
                try:
                    self.shown += os.read(self._screen, 65536).decode(errors="replace")
                except OSError:  # the other side is closed
                    assert holds(self.shown), f"ended before {what}:\n{self.shown}"

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def ended(self, within_sec: float = 60.0) -> int:
        deadline = time.monotonic() + within_sec
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"does not end:\n{self.shown}"
            if select.select([self._screen], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self._screen, 65536).decode(errors="replace")
                except OSError:
                    break
        return self._process.wait(max(0.1, deadline - time.monotonic()))

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._screen)


@pytest.fixture
def terminal(operator: Operator, request: pytest.FixtureRequest) -> Callable[..., Terminal]:
    def start(*words: str) -> Terminal:
        started = Terminal(operator, *words)
        request.addfinalizer(started.close)
        return started

    return start


def test_the_password_is_asked_for_and_not_echoed_and_the_pods_are_shown_live(
    operator: Operator, terminal: Callable[..., Terminal]
) -> None:
    shown = terminal("deploy")
    registry = operator.image.split("/", 1)[0]
    shown.until(lambda text: f"auth token of {operator.registry_user} at {registry}:" in text, "the question")
    shown.type(f"{operator.password}\n")
    assert shown.ended() == 0
    assert operator.password not in shown.shown
    assert "restarts" in shown.shown, "the table's head"
    assert "2 of 2 pods are up" in shown.shown


def test_a_teardown_asks_and_takes_no_for_an_answer(deployed: Operator, terminal: Callable[..., Terminal]) -> None:
    shown = terminal("teardown")
    shown.until(lambda text: "[y/N]" in text, "the question")
    shown.type("n\n")
    assert shown.ended() == 4
    assert len(deployed.objects("pods")) == 2
    shown = terminal("teardown")
    shown.until(lambda text: "[y/N]" in text, "the question")
    shown.type("y\n")
    assert shown.ended() == 0
    assert deployed.objects("jobs.batch") == []


def test_ctrl_c_while_waiting_leaves_the_pods_and_says_how_to_go_on(
    operator: Operator, terminal: Callable[..., Terminal]
) -> None:
    operator.cluster.faults.fail_pulls(operator.image, "timeout")
    shown = terminal("deploy", "--plain")
    shown.until(lambda text: "auth token" in text, "the question")
    shown.type(f"{operator.password}\n")
    shown.until(lambda text: "ImagePullBackOff" in text or "ErrImagePull" in text, "the pods' trouble")
    shown.interrupt()
    assert shown.ended() == 130
    assert "type the same to go on from there" in shown.shown
    assert "Traceback" not in shown.shown
    operator.cluster.faults.mend_pulls(operator.image)
    assert "2 of 2 pods are up" in operator.inv("deploy")


def test_ctrl_c_is_how_one_leaves_logs_that_are_followed(deployed: Operator, terminal: Callable[..., Terminal]) -> None:
    shown = terminal("logs", "--follow")
    shown.until(lambda text: "bench-1 (" in text, "the pods' lines")
    shown.interrupt()
    assert shown.ended() == 0
    assert "interrupted" not in shown.shown
    assert len(deployed.objects("pods")) == 2
