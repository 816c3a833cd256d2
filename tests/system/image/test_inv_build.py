"""`inv build` typed on a laptop, against a build VM with a real engine, with each way it can fail."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.support.machines.build_vm import DOCKER, MODEL, Yard
from tests.support.machines.network import USER

pytestmark = pytest.mark.timeout(600)
IMAGE = "qlora-fleet:tiny"
UP_TO_DATE = "is up to date: nothing was sent, nothing was built"


def image_id(it: Yard) -> str:
    return it.docker("image", "inspect", IMAGE, "--format", "{{.Id}}").stdout.strip()


def test_a_dry_run_prints_the_plan_and_touches_nothing(it: Yard) -> None:
    it.edit_bench("a plan")

    def all_there_is() -> tuple[object, ...]:  # the engine lists images of one second in any order
        return sorted(it.docker("images", "-q").stdout.split()), sorted(Path(it.tmpdir).rglob("*")), it.jobs()

    before = all_there_is()
    done = it.inv("build", "--dry-run", check=True)
    assert "takes models, our files, context and archives; the client's TMPDIR decides nothing" in done.stdout
    assert "overlay2" in done.stdout
    assert " build --progress=plain " in done.stdout
    assert all_there_is() == before


def test_the_projects_own_dockerfile_is_built_over_ssh_and_its_output_streams(it: Yard) -> None:
    it.edit_bench("a first build")
    logins = it.ground.vm_sshd.logins()
    done = it.inv("build", check=True)
    assert it.ground.vm_sshd.logins() == logins + 1
    assert "[prod 9/9] COPY bench /opt/qlora-fleet/bench" in done.stdout
    assert f"{IMAGE} {image_id(it)[7:19]} is built" in done.stdout
    job = it.jobs()[-1]
    assert json.loads((job / "outcome.json").read_text())["image_id"] == image_id(it)
    log = (it.project / "results" / "jobs" / f"{job.name}.txt").read_text()
    assert "writing image sha256:" in log


def test_an_unchanged_build_sends_and_builds_nothing(built: Yard) -> None:
    before, jobs = image_id(built), len(built.jobs())
    done = built.inv("build", check=True)
    assert UP_TO_DATE in done.stdout
    assert (image_id(built), len(built.jobs())) == (before, jobs)


def test_two_builds_at_once_are_one_job_and_both_end_well(it: Yard) -> None:
    it.edit_bench("two at once")
    client, jobs = it.gate("build"), len(it.jobs())
    first, second = (it.start("build", IMAGE_CLIENT=client) for _ in range(2))
    it.at_gate()
    it.wait_for(lambda: len(it.jobs()) > jobs, "a job")
    it.open_gate()
    said = [process.communicate(timeout=200) for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], said
    # The second one either followed the first one's job, or came to its turn and found the image made.
    built = [
        job
        for job in it.jobs()[jobs:]
        if (job / "log.txt").exists() and "exporting to" in (job / "log.txt").read_text()
    ]
    assert len(built) == 1
    assert it.inv("build", check=True).stdout.count(UP_TO_DATE) == 1


def test_a_laptop_that_is_closed_leaves_the_build_running_and_the_next_call_follows_it(it: Yard) -> None:
    it.edit_bench("a closed laptop")
    client, jobs = it.gate("build"), len(it.jobs())
    process = it.start("build", IMAGE_CLIENT=client)
    it.at_gate()
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    again = it.start("build", IMAGE_CLIENT=client)
    assert again.stdout is not None
    assert "a build is running already" in again.stdout.readline()
    it.open_gate()
    out, err = again.communicate(timeout=200)
    assert again.returncode == 0, (out, err)
    assert "is built" in out
    assert len(it.jobs()) == jobs + 1


@pytest.mark.parametrize("how", ["drop", "sshd"])
def test_a_link_that_breaks_during_a_build_costs_nothing_once_it_is_mended(it: Yard, how: str) -> None:
    it.edit_bench(f"a broken link: {how}")
    client, jobs = it.gate("build"), len(it.jobs())
    process = it.start("build", IMAGE_CLIENT=client)
    it.at_gate()
    if how == "sshd":
        assert it.ground.vm_sshd.kill_sessions() > 0
    else:
        it.ground.cable.cut(how)  # type: ignore[arg-type]
    assert process.stdout is not None
    said = ""
    while "connecting again" not in said:
        line = process.stdout.readline()
        assert line, process.communicate()
        said += line
    it.ground.cable.mend()
    it.open_gate()
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, (said + out, err)
    assert len(it.jobs()) == jobs + 1
    assert UP_TO_DATE in it.inv("build", check=True).stdout


def test_a_build_can_be_stopped_and_the_next_one_completes(it: Yard) -> None:
    it.edit_bench("a cancelled build")
    client = it.gate("build")
    process = it.start("build", IMAGE_CLIENT=client)
    it.at_gate()
    assert "ended" in it.inv("build", "--cancel", check=True).stdout
    _, err = process.communicate(timeout=120)
    assert process.returncode == 3
    assert "`inv build` starts it anew" in err
    assert "is built" in it.inv("build", check=True).stdout


def test_weights_have_layers_of_their_own_which_an_edit_and_a_new_stack_leave_alone(it: Yard) -> None:
    folder = it.put_model()
    words = it.models(MODEL)
    it.inv(*words, "build", check=True)
    before = it.layers(IMAGE)
    history = it.docker("history", "--format", "{{.Size}} {{.CreatedBy}}", "--no-trunc", IMAGE).stdout.splitlines()
    weights = [line for line in history if "ADD model[s]/" in line and not line.startswith("0B")]
    assert len(weights) == 3  # two shards, and what is small
    it.edit_bench("weights stay")
    it.inv(*words, "build", check=True)
    after = it.layers(IMAGE)
    assert after[:-1] == before[:-1]
    assert after[-1] != before[-1]
    # Everything made again, as after a new base or a pruned cache: the same weights and the same stack are not pushed.
    it.docker("builder", "prune", "--all", "--force")
    it.edit_bench("made anew")
    it.inv(*words, "build", check=True)
    anew = it.layers(IMAGE)
    assert anew[2:21] == after[2:21]
    # And a shard cut short, or one byte of it changed, is found before anything is trusted.
    shard = folder / "model-00002-of-00002.safetensors"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    done = it.inv(*words, "build")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{shard}: {len(content) - 1} bytes, its manifest says {len(content)}" in done.stderr
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    it.edit_bench("a flipped byte")
    done = it.inv(*words, "build")
    assert done.returncode == 3
    assert f"{shard}: its sha256 is not its manifest's; `inv model.fetch` mends it" in done.stderr
    shard.write_bytes(content)
    it.edit_bench("whole again")
    assert "is built" in it.inv(*words, "build", check=True).stdout


def test_a_model_that_is_not_there_is_named_with_what_brings_it(it: Yard) -> None:
    done = it.inv(*it.models("nobody/Nothing"), "build")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nobody--Nothing: not on the VM" in done.stderr
    assert "inv model.fetch" in done.stderr


ENGINE_FAULTS = {
    "client missing": ({"IMAGE_CLIENT": "/nowhere/docker"}, "/nowhere/docker: not found; install Docker there"),
    "engine elsewhere": (
        {"IMAGE_ENGINE": "unix:///nowhere.sock"},
        "the engine does not answer at unix:///nowhere.sock",
    ),
}


@pytest.mark.parametrize("fault", ENGINE_FAULTS)
def test_an_engine_that_cannot_be_asked_is_one_line_with_the_remedy(it: Yard, fault: str) -> None:
    settings, line = ENGINE_FAULTS[fault]
    done = it.inv("build", **settings)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert line in done.stderr


def test_a_user_outside_the_docker_group_is_told_how_to_get_in(it: Yard) -> None:
    it.set_docker_group()
    done = it.inv("build")
    it.set_docker_group(USER)
    assert done.returncode == 2
    assert "sudo usermod -aG docker $USER" in done.stderr


TMPDIR_FAULTS = {
    "missing": ("/nowhere/fss", "no such folder on the VM"),
    "relative": ("fss", "expected an absolute path"),
    "not writable": ("/opt", "this user may not write there"),
    "in memory": ("/mnt/memory", "is on tmpfs, which cannot keep a build's files"),
    "too small": ("/mnt/small", "GB free, this build needs"),
}


@pytest.mark.parametrize("fault", TMPDIR_FAULTS)
def test_a_tmpdir_that_will_not_do_is_refused_with_the_reason(it: Yard, fault: str) -> None:
    path, line = TMPDIR_FAULTS[fault]
    if fault == "in memory":
        it.vm.run("mkdir", "-p", path)
        it.vm.run("chown", USER, path)
    if fault == "too small":
        it.vm.small_disk(path, megabytes=40, owner=USER)
    it.edit_bench(fault)
    done = it.inv("build", "--tmpdir", path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert line in done.stderr


def test_a_disk_that_somebody_fills_during_the_build_is_named_and_the_next_build_completes(it: Yard) -> None:
    it.stop_engine()
    it.vm.small_disk("/mnt/data", megabytes=1500)
    it.start_engine("/mnt/data/docker")
    try:
        it.import_base()
        client = it.gate("build", before="true")
        it.edit_bench("a full disk")
        process = it.start("build", IMAGE_CLIENT=client)
        it.at_gate()
        it.vm.run("sh", "-c", "fallocate -l $(($(stat -f -c '%a*%S' /mnt/data) - 9000000)) /mnt/data/somebody-elses")
        it.open_gate()
        _, err = process.communicate(timeout=200)
        assert process.returncode == 3, err
        assert "no space left on device" in err
        assert "free some room there, then `inv build`" in err
        it.vm.run("rm", "/mnt/data/somebody-elses")
        assert "is built" in it.inv("build", check=True).stdout
    finally:
        it.stop_engine()
        it.start_engine()


def test_a_tmpdir_that_fills_up_while_files_arrive_keeps_nothing_that_is_trusted(it: Yard) -> None:
    it.vm.small_disk("/mnt/share", megabytes=700, owner=USER)
    room = "$(($(stat -f -c '%a*%S' /mnt/share) - 100000))"
    client = it.gate("info", after=f"fallocate -l {room} /mnt/share/somebody-elses")
    it.open_gate()
    it.edit_bench("a full share")
    # The engine is asked before the disks are looked at, so the disk is full by then: refused before anything is sent.
    done = it.inv("build", "--tmpdir", "/mnt/share", IMAGE_CLIENT=client)
    assert (done.returncode, done.stdout) == (2, "")
    assert "/mnt/share: 0.0 GB free" in done.stderr
    it.vm.run("rm", "/mnt/share/somebody-elses")
    client = it.gate("inspect", after=f"[ -e /mnt/share/x ] || fallocate -l {room} /mnt/share/x")
    it.open_gate()
    done = it.inv("build", "--tmpdir", "/mnt/share", IMAGE_CLIENT=client)
    assert done.returncode == 3
    assert "No space left on device" in done.stderr
    assert "`inv build --tmpdir /mnt/share` goes on" in done.stderr
    it.vm.run("rm", "/mnt/share/x")
    assert "is built" in it.inv("build", "--tmpdir", "/mnt/share", check=True).stdout


def test_an_engine_with_its_data_in_a_file_on_the_share_builds_and_comes_back_after_a_reboot(it: Yard) -> None:
    socket = "/run/qlora-fleet-engine.sock"
    try:
        said = it.inv_as_root_of_the_vm("vm.engine", "--size-gb", "3").stdout
        assert f"set image.engine: unix://{socket}" in said
        assert "engine started" in said
        assert "engine was running" in it.inv_as_root_of_the_vm("vm.engine").stdout
        it.docker("-H", f"unix://{socket}", "import", str(it.folder / "base.tar"), "standin:base")
        plan = it.inv("build", "--dry-run", IMAGE_ENGINE=f"unix://{socket}", check=True).stdout
        assert "/var/lib/qlora-fleet-engine/data (ext4, overlay2)" in plan
        assert "unpacks in /var/lib/qlora-fleet-engine/tmp" not in plan  # root's environment is not this user's to read
        assert "is built" in it.inv("build", IMAGE_ENGINE=f"unix://{socket}", check=True).stdout
        # The machine goes down and comes up: the file is there, nothing else is.
        it.stop_share_engine()
        said = it.inv_as_root_of_the_vm("vm.engine").stdout
        assert "engine.ext4 was there" in said
        assert "engine started" in said
        assert UP_TO_DATE in it.inv("build", IMAGE_ENGINE=f"unix://{socket}", check=True).stdout
    finally:
        it.stop_share_engine()


def test_an_engine_of_its_own_is_refused_where_it_cannot_be(it: Yard) -> None:
    done = it.inv("vm.engine")
    assert done.returncode == 2
    assert "sudo" in done.stderr
    elsewhere = it.folder / "elsewhere"
    done = it.inv_as_root_of_the_vm("vm.engine", "--tmpdir", str(elsewhere), "--size-gb", "90000", check=False)
    assert done.returncode == 2
    assert "90000.0 GB asked for; name a smaller size" in done.stderr
    assert not list(elsewhere.rglob("*.ext4*"))


def test_the_client_that_cannot_build_is_told_apart_from_one_that_can(it: Yard) -> None:
    script = it.folder / "docker-without-buildx"
    version = it.docker("version", "--format", "{{json .}}").stdout.strip()
    document = json.loads(version)
    document["Client"]["Version"] = "28.2.2"
    script.write_text(
        f"#!/bin/sh\ncase $1 in version) cat <<'END'\n{json.dumps(document)}\nEND\n;;\n"
        f'buildx) echo "docker: \'buildx\' is not a docker command." >&2; exit 1;;\n*) exec {DOCKER} "$@";; esac\n'
    )
    script.chmod(0o755)
    done = it.inv("build", IMAGE_CLIENT=str(script))
    assert done.returncode == 2
    assert "its plugin buildx is missing; apt-get install docker-buildx" in done.stderr
