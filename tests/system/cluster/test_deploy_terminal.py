"""Tests on a terminal: the live table, prompts, a password that is not echoed, and Ctrl-C."""

import subprocess
from collections.abc import Callable

import pytest
import yaml

from tests.support.terminal import PseudoTerminal
from tests.system.cluster.conftest import INV, OUR_USER, PASSWORD, Operator


class Terminal(PseudoTerminal):
    """Process of `inv` on a pseudo-terminal."""

    def __init__(self, operator: Operator, *arguments: str) -> None:
        (operator.project / "own.yaml").write_text(yaml.safe_dump(operator.settings))
        super().__init__(
            lambda **streams: subprocess.Popen(
                (str(INV), "-f", "own.yaml", *arguments),
                cwd=operator.project,
                env={**operator.environment(), "TERM": "xterm", "COLUMNS": "160"},
                start_new_session=True,
                **streams,
            )
        )


@pytest.fixture
def terminal(operator: Operator, request: pytest.FixtureRequest) -> Callable[..., Terminal]:
    def start(*arguments: str) -> Terminal:
        started = Terminal(operator, *arguments)
        request.addfinalizer(started.close)
        return started

    return start


def test_a_deployment_is_made_interrupted_continued_and_ended_with_prompts(
    operator: Operator, terminal: Callable[..., Terminal]
) -> None:
    operator.cluster.faults.fail_pulls(operator.image, "timeout")
    process = terminal("deploy")
    registry = operator.image.split("/", 1)[0]
    process.wait_for(f"auth token of {OUR_USER} at {registry}:")
    process.type(f"{PASSWORD}\n")
    process.wait_for("ImagePullBackOff", "ErrImagePull")
    process.interrupt()
    assert process.wait() == 130
    assert "interrupted; " in process.output
    assert "Traceback" not in process.output
    assert PASSWORD not in process.output, "no echo"
    assert "index" in process.output, "the head of a live table"

    operator.cluster.faults.repair_pulls(operator.image)
    assert "2 of 2 pods are up" in operator.inv("deploy")
    process = terminal("logs", "--follow")
    process.wait_for("bench-1-")
    process.interrupt()
    assert process.wait() == 0
    for answer, code, pods in (("n", 4, 2), ("y", 0, 0)):
        process = terminal("teardown")
        process.wait_for("[y/N]")
        process.type(f"{answer}\n")
        assert process.wait() == code
        operator.cluster.wait_until(lambda number=pods: len(operator.objects("pods")) == number, f"{pods} pods")
    assert operator.objects("jobs.batch") == []
