"""`inv monitor` as a real process."""

import json


def test_the_real_command_answers_on_this_machine(inv):
    ended = inv("monitor", env={"INVOKE_FLEET_SIZE": "2"})
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [line.split()[0] for line in ended.stdout.splitlines()] == ["worker", "worker-0", "worker-1"]
    assert "unreachable" not in ended.stdout, json.dumps(ended.stdout)
