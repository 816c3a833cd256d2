"""`inv vm.check` as a person types it on the laptop: what it says, and the exit code of each way of not getting in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.support.machines.network import Ground
from tests.support.paths import ROOT


def check(ground: Ground, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("INVOKE_")}
    mine = {"HOME": str(ground.folder), "INVOKE_BUILD_HOST": "vm", **environment}
    done: subprocess.CompletedProcess[str] = ground.laptop.run(
        *(sys.executable, "-m", "invoke", "vm.check", *words), check=False, cwd=ROOT, env={**kept, **mine}
    )
    assert "Traceback" not in done.stderr
    return done


def test_the_vm_is_described(ground_of_module: Ground) -> None:
    before = ground_of_module.vm_sshd.logins()
    done = check(ground_of_module, "--tmpdir", "/mnt")
    assert done.returncode == 0, done.stderr
    assert "user ubuntu in ubuntu; home" in done.stdout
    assert "free on tmpfs" in done.stdout
    assert ground_of_module.vm_sshd.logins() == before + 1


def forget(ground: Ground) -> None:
    ground.known_hosts.write_text("")


def reinstall(ground: Ground) -> None:
    ground.vm_sshd.new_host_key()


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
    ground_of_module: Ground,
    befalls: Callable[[Ground], None],
    environment: dict[str, str],
    exit_code: int,
    said: str,
) -> None:
    ground_of_module.know_all()
    befalls(ground_of_module)
    done = check(ground_of_module, **environment)
    assert (done.returncode, done.stdout) == (exit_code, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
