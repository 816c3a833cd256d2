"""`inv build` typed on a laptop, against a build VM with a real engine, with each way it can fail."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.support.hosts.local_fleet import wait_for_words
from tests.support.machines.build_vm import DOCKER, MODEL, BuildVm
from tests.support.machines.network import USER

pytestmark = pytest.mark.timeout(600)
IMAGE = "qlora-fleet:tiny"
UP_TO_DATE = "is up to date: nothing was sent, nothing was built"


def image_id(build_vm: BuildVm) -> str:
    return build_vm.docker("image", "inspect", IMAGE, "--format", "{{.Id}}").stdout.strip()


def test_a_dry_run_prints_the_plan_and_touches_nothing(build_vm: BuildVm) -> None:
    build_vm.edit_bench("a plan")

    def all_there_is() -> tuple[object, ...]:  # the engine lists images of one second in any order
        return (
            sorted(build_vm.docker("images", "-q").stdout.split()),
            sorted(Path(build_vm.tmpdir).rglob("*")),
            build_vm.jobs(),
        )

    before = all_there_is()
    done = build_vm.inv("build", "--dry-run")
    assert "takes models, our files, context and archives; the client's TMPDIR has no effect" in done.stdout
    assert "overlay2" in done.stdout
    assert " build --progress=plain " in done.stdout
    assert all_there_is() == before


def test_the_projects_own_dockerfile_is_built_over_ssh_and_its_output_streams(build_vm: BuildVm) -> None:
    build_vm.edit_bench("a first build")
    logins = build_vm.network.vm_sshd.logins()
    done = build_vm.inv("build")
    assert build_vm.network.vm_sshd.logins() == logins + 1
    assert "[prod 10/10] COPY bench /opt/qlora-fleet/bench" in done.stdout
    assert f"{IMAGE} {image_id(build_vm)[7:19]} is built" in done.stdout
    job = build_vm.jobs()[-1]
    assert json.loads((job / "outcome.json").read_text())["image_id"] == image_id(build_vm)
    log = (build_vm.project / "results" / "jobs" / f"{job.name}.txt").read_text()
    assert "writing image sha256:" in log


def test_an_unchanged_build_sends_and_builds_nothing(built: BuildVm) -> None:
    before, jobs = image_id(built), len(built.jobs())
    done = built.inv("build")
    assert UP_TO_DATE in done.stdout
    assert (image_id(built), len(built.jobs())) == (before, jobs)


def test_two_builds_at_once_are_one_job_and_both_end_well(build_vm: BuildVm) -> None:
    build_vm.edit_bench("two at once")
    client, jobs = build_vm.gate("build"), len(build_vm.jobs())
    first, second = (build_vm.start("build", IMAGE_CLIENT=client) for _ in range(2))
    build_vm.at_gate()
    build_vm.wait_for(lambda: len(build_vm.jobs()) > jobs, "a job")
    build_vm.open_gate()
    for process in (first, second):
        build_vm.ended(process)
    # The second one either followed the first one's job, or came to its turn and found the image made.
    built = [
        job
        for job in build_vm.jobs()[jobs:]
        if (job / "log.txt").exists() and "exporting to" in (job / "log.txt").read_text()
    ]
    assert len(built) == 1
    assert build_vm.inv("build").stdout.count(UP_TO_DATE) == 1


def test_a_laptop_that_is_closed_leaves_the_build_running_and_the_next_call_follows_it(build_vm: BuildVm) -> None:
    build_vm.edit_bench("a closed laptop")
    jobs = len(build_vm.jobs())
    process, client = build_vm.start_to_gate("build")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    again = build_vm.start("build", IMAGE_CLIENT=client)
    assert again.stdout is not None
    assert "a build is already running" in again.stdout.readline()
    build_vm.open_gate()
    assert "is built" in build_vm.ended(again)[0]
    assert len(build_vm.jobs()) == jobs + 1


@pytest.mark.parametrize("how", ["drop", "sshd"])
def test_a_link_that_breaks_during_a_build_costs_nothing_once_it_is_mended(build_vm: BuildVm, how: str) -> None:
    build_vm.edit_bench(f"a broken link: {how}")
    jobs = len(build_vm.jobs())
    process, _ = build_vm.start_to_gate("build")
    if how == "sshd":
        assert build_vm.network.vm_sshd.kill_sessions() > 0
    else:
        build_vm.network.cable.cut(how)  # type: ignore[arg-type]
    wait_for_words(process, "connecting again")
    build_vm.network.cable.mend()
    build_vm.open_gate()
    build_vm.ended(process)
    assert len(build_vm.jobs()) == jobs + 1
    assert UP_TO_DATE in build_vm.inv("build").stdout


def test_a_build_can_be_stopped_and_the_next_one_completes(build_vm: BuildVm) -> None:
    build_vm.edit_bench("a cancelled build")
    process, _ = build_vm.start_to_gate("build")
    assert "stopped" in build_vm.inv("build", "--cancel").stdout
    assert "`inv build` starts it anew" in build_vm.ended(process, code=3, within_sec=120)[1]
    assert "is built" in build_vm.inv("build").stdout


def test_weights_have_layers_of_their_own_which_an_edit_and_a_new_stack_leave_alone(build_vm: BuildVm) -> None:
    folder = build_vm.put_model()
    words = build_vm.models(MODEL)
    build_vm.inv(*words, "build")
    before = build_vm.layers(IMAGE)
    history = build_vm.docker(
        "history", "--format", "{{.Size}} {{.CreatedBy}}", "--no-trunc", IMAGE
    ).stdout.splitlines()
    weights = [line for line in history if "ADD model[s]/" in line and not line.startswith("0B")]
    assert len(weights) == 3  # two shards, and what is small
    build_vm.edit_bench("weights stay")
    build_vm.inv(*words, "build")
    after = build_vm.layers(IMAGE)
    assert after[:-1] == before[:-1]
    assert after[-1] != before[-1]
    # Everything made again, as after a new base or a pruned cache: the same weights and the same stack are not pushed.
    build_vm.docker("builder", "prune", "--all", "--force")
    build_vm.edit_bench("made anew")
    build_vm.inv(*words, "build")
    anew = build_vm.layers(IMAGE)
    assert anew[2:21] == after[2:21]
    # And a shard cut short, or one byte of it changed, is found before anything is trusted.
    shard = folder / "model-00002-of-00002.safetensors"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    refused = build_vm.refused(*words, "build", code=4)
    assert f"{shard}: {len(content) - 1} bytes, its manifest says {len(content)}" in refused
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    build_vm.edit_bench("a flipped byte")
    done = build_vm.inv(*words, "build", code=4)
    assert f"{shard}: its sha256 is not its manifest's; `inv model.fetch` repairs it" in done.stderr
    shard.write_bytes(content)
    # And packed weights that were damaged since are packed again, and never built in.
    build_vm.edit_bench("whole again")
    assert "is built" in build_vm.inv(*words, "build").stdout
    packed = Path(build_vm.tmpdir, "qlora-fleet", "context", "models", "00.tar")
    whole = packed.read_bytes()
    packed.write_bytes(whole[:5000] + bytes(byte ^ 1 for byte in whole[5000:5003]) + whole[5003:])
    build_vm.inv(*words, "build", "--force")
    log = (build_vm.jobs()[-1] / "log.txt").read_text()  # of many lines at once not all are shown
    assert "00.tar: is not what was packed; packing it again" in log
    assert packed.read_bytes() == whole
    assert build_vm.layers(IMAGE)[:-1] == anew[:-1]


def test_a_step_that_fails_is_told_by_its_own_last_words_and_its_log_is_here(build_vm: BuildVm) -> None:
    settings = build_vm.folder / "extra.yaml"
    settings.write_text(json.dumps({"image": {"extra_packages": ["nosuchpackage"]}}))
    done = build_vm.inv("-f", str(settings), "build", code=1)
    assert "E: Unable to locate package nosuchpackage (step [base 2/2], exit code: 100)" in done.stderr
    log = Path(done.stderr.strip().rpartition("; log: ")[2])
    assert log.parent == build_vm.project / "results" / "jobs"
    assert "nosuchpackage" in log.read_text()


def test_a_model_that_is_not_there_is_named_with_what_brings_it(build_vm: BuildVm) -> None:
    refused = build_vm.refused(*build_vm.models("nobody/Nothing"), "build")
    assert "nobody--Nothing: not on the VM" in refused
    assert "inv model.fetch" in refused


REFUSED: dict[str, tuple[tuple[str, ...], dict[str, str], str]] = {
    "no client": ((), {"IMAGE_CLIENT": "/nowhere/docker"}, "/nowhere/docker: not found; install Docker there"),
    "no engine": ((), {"IMAGE_ENGINE": "unix:///nowhere.sock"}, "the engine does not answer at unix:///nowhere.sock"),
    "not in the docker group": ((), {}, "sudo usermod -aG docker $USER"),
    "no folder": (("--tmpdir", "/nowhere/fss"), {}, "no such folder on the VM"),
    "a relative folder": (("--tmpdir", "fss"), {}, "expected an absolute path"),
    "a folder of others": (("--tmpdir", "/opt"), {}, "this user may not write there"),
    "a folder in memory": (("--tmpdir", "/mnt/memory"), {}, "is on tmpfs, which cannot keep a build's files"),
    "a small disk": (("--tmpdir", "/mnt/small"), {}, "GB free, this build needs"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_place_where_nothing_can_be_built_is_refused_with_the_remedy(build_vm: BuildVm, fault: str) -> None:
    words, settings, line = REFUSED[fault]
    if fault == "not in the docker group":
        build_vm.set_docker_group()
    if fault == "a folder in memory":
        build_vm.vm.run("install", "--directory", f"--owner={USER}", "/mnt/memory")
    if fault == "a small disk":
        build_vm.vm.small_disk("/mnt/small", megabytes=40, owner=USER)
    build_vm.edit_bench(fault)
    assert line in build_vm.refused("build", *words, **settings)


def test_a_tmpdir_that_fills_up_while_files_arrive_keeps_nothing_that_is_trusted(build_vm: BuildVm) -> None:
    build_vm.vm.small_disk("/mnt/share", megabytes=700, owner=USER)
    room = "$(($(stat -f -c '%a*%S' /mnt/share) - 100000))"
    client = build_vm.gate("info", after=f"fallocate -l {room} /mnt/share/somebody-elses", is_open=True)
    build_vm.edit_bench("a full share")
    # The engine is asked before the disks are looked at, so the disk is full by then: refused before anything is sent.
    refused = build_vm.refused("build", "--tmpdir", "/mnt/share", IMAGE_CLIENT=client)
    assert "/mnt/share: 0.0 GB free" in refused
    build_vm.vm.run("rm", "/mnt/share/somebody-elses")
    client = build_vm.gate("inspect", after=f"[ -e /mnt/share/x ] || fallocate -l {room} /mnt/share/x", is_open=True)
    done = build_vm.inv("build", "--tmpdir", "/mnt/share", code=3, IMAGE_CLIENT=client)
    assert "No space left on device" in done.stderr
    assert "`inv build --tmpdir /mnt/share` tries again" in done.stderr
    build_vm.vm.run("rm", "/mnt/share/x")
    assert "is built" in build_vm.inv("build", "--tmpdir", "/mnt/share").stdout


def test_an_engine_with_its_data_in_a_file_on_the_share_builds_once_there_is_room_and_comes_back_after_a_reboot(
    build_vm: BuildVm,
) -> None:
    socket = "/run/qlora-fleet-engine.sock"
    # The folder belongs to whoever made it: root's engine is below another one than the user's builds.
    words = ("vm.engine", "--tmpdir", str(build_vm.folder / "root's share"))
    try:
        said = build_vm.inv_as_root_of_the_vm(*words, "--size-gb", "3").stdout
        assert f"set image.engine: unix://{socket}" in said
        assert "engine started" in said
        assert "engine was running" in build_vm.inv_as_root_of_the_vm(*words).stdout
        disk = build_vm.folder / "root's share" / "qlora-fleet" / "engine.ext4"
        assert [path.stat().st_mode & 0o777 for path in (disk, disk.parent)] == [0o600, 0o700]
        mounted = build_vm.vm.run("findmnt", "-n", "-o", "OPTIONS", "/var/lib/qlora-fleet-engine").stdout
        assert {"nosuid", "nodev"} <= set(mounted.strip().split(","))
        build_vm.docker("-H", f"unix://{socket}", "import", str(build_vm.folder / "base.tar"), "standin:base")
        plan = build_vm.inv("build", "--dry-run", IMAGE_ENGINE=f"unix://{socket}").stdout
        assert "/var/lib/qlora-fleet-engine/data (ext4, overlay2)" in plan
        assert "unpacks in /var/lib/qlora-fleet-engine/tmp" not in plan  # root's environment is not this user's to read
        # Somebody fills its disk during the build: that is named, and the next build completes.
        data = "/var/lib/qlora-fleet-engine"
        process, _ = build_vm.start_to_gate("build", IMAGE_ENGINE=f"unix://{socket}")
        # All but 9 MB of what root may take, as the engine is root's; 17 MB are the file system's own.
        room = f"$(($(stat -f -c '%f*%S' {data}) - 26000000))"
        build_vm.vm.run("sh", "-c", f"fallocate -l {room} {data}/somebody-elses")
        build_vm.open_gate()
        _, err = build_vm.ended(process, code=3)
        assert "no space left on device" in err
        assert "free some space there, then `inv build`" in err
        build_vm.vm.run("rm", f"{data}/somebody-elses")
        assert "is built" in build_vm.inv("build", IMAGE_ENGINE=f"unix://{socket}").stdout
        # The machine goes down and comes up: the file is there, nothing else is.
        build_vm.stop_share_engine()
        said = build_vm.inv_as_root_of_the_vm(*words).stdout
        assert "engine.ext4 was there" in said
        assert "engine started" in said
        assert UP_TO_DATE in build_vm.inv("build", IMAGE_ENGINE=f"unix://{socket}").stdout
    finally:
        build_vm.stop_share_engine()


def test_an_engine_of_its_own_is_refused_where_it_cannot_be(build_vm: BuildVm) -> None:
    assert "sudo" in build_vm.inv("vm.engine", code=2).stderr
    elsewhere = build_vm.folder / "elsewhere"
    done = build_vm.inv_as_root_of_the_vm("vm.engine", "--tmpdir", str(elsewhere), "--size-gb", "90000", code=2)
    assert "90000.0 GB asked for; name a smaller size" in done.stderr
    assert not list(elsewhere.rglob("*.ext4*"))


def test_the_client_that_cannot_build_is_told_apart_from_one_that_can(build_vm: BuildVm) -> None:
    script = build_vm.folder / "docker-without-buildx"
    version = build_vm.docker("version", "--format", "{{json .}}").stdout.strip()
    document = json.loads(version)
    document["Client"]["Version"] = "28.2.2"
    script.write_text(
        f"#!/bin/sh\ncase $1 in version) cat <<'END'\n{json.dumps(document)}\nEND\n;;\n"
        f'buildx) echo "docker: \'buildx\' is not a docker command." >&2; exit 1;;\n*) exec {DOCKER} "$@";; esac\n'
    )
    script.chmod(0o755)
    refused = build_vm.refused("build", IMAGE_CLIENT=str(script))
    assert "its plugin buildx is missing; apt-get install docker-buildx" in refused
