"""Errors of the engine's client, check containers and layers."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from remote.hosts.base import CommandTimedOut, Completed
from remote.hosts.command import Command
from remote.image.engine import Client, EngineError, layers, run_check, to_engine_error


@pytest.mark.parametrize(
    ("exit_code", "stderr", "remedy"),
    [
        (127, "", "apt-get install docker.io"),
        (1, "permission denied while trying to connect to the socket", "usermod -aG docker"),
        (1, "Cannot connect to the Docker daemon at unix:///x", "systemctl start docker"),
        (1, "no space left on device", ""),
    ],
)
def test_a_known_cause_has_its_remedy(exit_code: int, stderr: str, remedy: str) -> None:
    host: Any = SimpleNamespace(name="vm")
    completed = Completed(exit_code=exit_code, stderr=stderr.encode())
    error = to_engine_error(host, Client(program="docker"), Command(argv=("docker", "info")), completed)
    assert remedy in error.remedy
    assert bool(remedy) is bool(error.remedy)
    assert error.remedy not in error.problem or not remedy


class ScriptedHost:
    """Host whose commands have the given outcomes, in order."""

    name = "vm"

    def __init__(self, *outcomes: Completed | Exception) -> None:
        self._outcomes, self.commands = list(outcomes), []

    def run(self, command: Command, **_options: object) -> Completed:
        self.commands.append(command.argv)
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (Completed(exit_code=3, stdout=b"report"), None),
        (Completed(exit_code=127, stderr=b"exec: python: not found"), None),
        (Completed(exit_code=125, stderr=b"docker: Error response from daemon: no such runtime"), "no such runtime"),
        (CommandTimedOut("vm: too slow"), "timed out after 60 s in image"),
    ],
)
def test_a_check_container_is_removed_however_it_ends(outcome: Completed | Exception, error: str | None) -> None:
    host: Any = ScriptedHost(outcome, Completed(exit_code=0))
    if error is None:
        assert run_check(host, Client(), "image", ("python", "check"), timeout_sec=60.0) is outcome
    else:
        with pytest.raises(EngineError, match=error):
            run_check(host, Client(), "image", ("python", "check"), timeout_sec=60.0)
    run, remove = host.commands
    assert {"--network=none", "--read-only", "--cap-drop=ALL"} <= set(run)
    assert run[-3:] == ("image", "python", "check")
    assert remove == (
        "docker",
        "rm",
        "--force",
        next(flag for flag in run if "--name=" in flag).removeprefix("--name="),
    )


def test_layers_are_listed_oldest_first_by_kind() -> None:
    steps = {"COPY bench /opt # buildkit": 3, "ENV A=b": 0, "COPY /layers/1 /": 2, "ADD model[s]/00 /models": 9, "": 5}
    history = "\n".join(json.dumps({"CreatedBy": step, "Size": str(size)}) for step, size in steps.items())
    host: Any = ScriptedHost(Completed(exit_code=0, stdout=history.encode()))
    steps_found = [(layer.step, layer.kind, layer.size) for layer in layers(host, Client(), "image")]
    assert steps_found == [
        ("(imported)", "system", 5),
        ("ADD model[s]/00 /models", "weights", 9),
        ("COPY /layers/1 /", "stack", 2),
        ("COPY bench /opt", "code", 3),
    ]
