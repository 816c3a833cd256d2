"""`inv vm.check` as a person types it on the laptop: what it says, and the exit code of each way of not getting in."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.support.machines.network import Network
from tests.support.paths import ROOT


def check(network: Network, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("INVOKE_")}
    mine = {"HOME": str(network.folder), "INVOKE_BUILD_HOST": "vm", **environment}
    done: subprocess.CompletedProcess[str] = network.laptop.run(
        *(sys.executable, "-m", "invoke", "vm.check", *words), check=False, cwd=ROOT, env={**kept, **mine}
    )
    assert "Traceback" not in done.stderr
    return done


def test_the_vm_is_described(network_of_module: Network) -> None:
    before = network_of_module.vm_sshd.logins()
    done = check(network_of_module, "--tmpdir", "/mnt")
    assert done.returncode == 0, done.stderr
    assert "user ubuntu in ubuntu; home" in done.stdout
    assert "free on tmpfs" in done.stdout
    assert network_of_module.vm_sshd.logins() == before + 1


def forget(network: Network) -> None:
    network.known_hosts.write_text("")


def reinstall(network: Network) -> None:
    network.vm_sshd.new_host_key()


@pytest.mark.parametrize(
    ("befalls", "environment", "exit_code", "said"),
    [
        (forget, {}, 4, "its host key is unknown"),
        (reinstall, {}, 4, "its host key has changed"),
        (lambda _: None, {"INVOKE_BUILD_USER": "nosuchuser"}, 2, "does not let user 'nosuchuser' in"),
        (lambda _: None, {"INVOKE_BUILD_HOST": "-oProxyCommand=x"}, 2, "build.host: '-oProxyCommand=x' is no host"),
        (lambda _: None, {"INVOKE_BUILD_HOST": "no-such-host"}, 2, "no machine of that name"),
        (lambda _: None, {"INVOKE_BUILD_PORT": "9"}, 3, "nothing listens on port 9"),
    ],
    ids=["unknown key", "changed key", "wrong user", "an option for a host", "unknown host", "wrong port"],
)
def test_each_way_of_not_getting_in_is_one_line_and_an_exit_code(
    network_of_module: Network,
    befalls: Callable[[Network], None],
    environment: dict[str, str],
    exit_code: int,
    said: str,
) -> None:
    network_of_module.know_all()
    befalls(network_of_module)
    done = check(network_of_module, **environment)
    assert (done.returncode, done.stdout) == (exit_code, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
