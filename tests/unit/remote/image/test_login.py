"""Why a login failed: the registry's no; an engine that is shut to this user, down, or not Docker's."""

import pytest

from remote.hosts.command import Command, Secret
from remote.hosts.host import Completed, HostError, HostUnreachable, LoginRefused
from remote.image import registry
from remote.image.engine import Client, EngineError, observe


class Vm:
    """A host on which the engine's client says this; every other command works."""

    name, workdir, python = "vm", "/home/me/.qlora-fleet", ("python3",)

    def __init__(self, complaint: str) -> None:
        self.complaint, self.ran = complaint, list[tuple[str, ...]]()

    def run(self, command: Command, **_: object) -> Completed:
        self.ran.append(command.argv)
        if "login" in command.argv:
            return Completed(exit_code=1, stderr=self.complaint.encode())
        return Completed(exit_code=0, stdout=b"/dev/shm/qlora-fleet-login-x\n")


@pytest.mark.parametrize(("complaint", "kind", "says"), [
    ("Got permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: "
     'Post "http://%2Fvar%2Frun%2Fdocker.sock/v1.24/auth": dial unix: connect: permission denied',
     EngineError, r"vm: this user may not use the engine; type there: sudo usermod -aG docker \$USER"),
    ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
     EngineError, "start it: sudo systemctl start docker"),
    ("Error response from daemon: Get https://fra.ocir.io/v2/: unauthorized: incorrect username or password",
     LoginRefused, "fra.ocir.io refuses user ns/me: .*its users are NAMESPACE/USER"),
    ('Error response from daemon: Get "https://fra.ocir.io/v2/": dial tcp: connection refused',
     HostUnreachable, "vm: logging in to fra.ocir.io: "),
])  # fmt: skip
def test_each_cause_of_a_failed_login_is_named_with_its_own_remedy(
    complaint: str, kind: type[HostError], says: str
) -> None:
    vm = Vm(complaint)
    with pytest.raises(kind, match=says):
        registry.log_in(vm, Client(), "fra.ocir.io", "ns/me", Secret("token"))
    assert vm.ran[-1] == ("rm", "-rf", "--", "/dev/shm/qlora-fleet-login-x")


class Podman(Vm):
    """Answers as podman does, which the package podman-docker installs as `docker`."""

    def run(self, *_: object, **_how: object) -> Completed:
        return Completed(exit_code=0, stdout=self.complaint.encode())


@pytest.mark.parametrize("version", ['{"Client": {"Version": "4.9.4-rhel"}}', '{"Client": {}, "Server": null}'])
def test_an_engine_that_is_not_dockers_is_named(version: str) -> None:
    with pytest.raises(EngineError, match=r"vm: docker speaks to no engine of Docker's .*image\.client"):
        observe(Podman(version), Client())
