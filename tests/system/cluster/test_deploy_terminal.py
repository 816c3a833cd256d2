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

WITHIN_SEC = 60.0


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

    def until(self, *words: str) -> None:
        """Until one of these is shown."""
        deadline = time.monotonic() + WITHIN_SEC
        while not any(word in self.shown for word in words):
            assert self._read(), f"ended before {words}:\n{self.shown}"
            assert time.monotonic() < deadline, f"waited for {words}; shown so far:\n{self.shown}"

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def ended(self) -> int:
        """Its exit code."""
        deadline = time.monotonic() + WITHIN_SEC
        while self._process.poll() is None and self._read():
            assert time.monotonic() < deadline, f"does not end:\n{self.shown}"
        return self._process.wait(max(0.1, deadline - time.monotonic()))

    def _read(self) -> bool:
        """What is shown within a tenth of a second; False once the other side is closed."""
        if select.select([self._screen], [], [], 0.1)[0]:
            try:
                self.shown += os.read(self._screen, 65536).decode(errors="replace")
            except OSError:
                return False
        return True

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
    shown.until(f"auth token of {operator.registry_user} at {registry}:")
    shown.type(f"{operator.password}\n")
    assert shown.ended() == 0
    assert operator.password not in shown.shown
    assert "restarts" in shown.shown, "the table's head"
    assert "2 of 2 pods are up" in shown.shown


def test_a_teardown_asks_and_takes_no_for_an_answer(deployed: Operator, terminal: Callable[..., Terminal]) -> None:
    shown = terminal("teardown")
    shown.until("[y/N]")
    shown.type("n\n")
    assert shown.ended() == 4
    assert len(deployed.objects("pods")) == 2
    shown = terminal("teardown")
    shown.until("[y/N]")
    shown.type("y\n")
    assert shown.ended() == 0
    assert deployed.objects("jobs.batch") == []


def test_ctrl_c_while_waiting_leaves_the_pods_and_says_how_to_go_on(
    operator: Operator, terminal: Callable[..., Terminal]
) -> None:
    operator.cluster.faults.fail_pulls(operator.image, "timeout")
    shown = terminal("deploy", "--plain")
    shown.until("auth token")
    shown.type(f"{operator.password}\n")
    shown.until("ImagePullBackOff", "ErrImagePull")
    shown.interrupt()
    assert shown.ended() == 130
    assert "type the same to go on from there" in shown.shown
    assert "Traceback" not in shown.shown
    operator.cluster.faults.mend_pulls(operator.image)
    assert "2 of 2 pods are up" in operator.inv("deploy")


def test_ctrl_c_is_how_one_leaves_logs_that_are_followed(deployed: Operator, terminal: Callable[..., Terminal]) -> None:
    shown = terminal("logs", "--follow")
    shown.until("bench-1 (")
    shown.interrupt()
    assert shown.ended() == 0
    assert "interrupted" not in shown.shown
    assert len(deployed.objects("pods")) == 2
