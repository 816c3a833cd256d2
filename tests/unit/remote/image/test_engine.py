"""Tests of the error for a failed command of the engine's client."""

from types import SimpleNamespace
from typing import Any

import pytest

from remote.hosts.base import Completed
from remote.hosts.command import Command
from remote.image.engine import Client, to_engine_error


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
