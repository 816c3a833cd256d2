"""`inv build` on a laptop, with a build VM that has a real engine, and each way to fail."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.support.hosts.local_fleet import wait_for_line
from tests.support.machines.build_vm import MODEL, NAMESPACE, REGISTRY, BuildVm
from tests.support.machines.network import USER

pytestmark = pytest.mark.timeout(600)
IMAGE = "qlora-fleet:tiny"
UP_TO_DATE = "is up to date: nothing was sent, nothing was built"


def image_id(build_vm: BuildVm) -> str:
    return build_vm.docker("image", "inspect", IMAGE, "--format", "{{.Id}}").stdout.strip()


def test_a_dry_run_changes_nothing_and_the_projects_own_dockerfile_is_built_over_ssh(build_vm: BuildVm) -> None:
    build_vm.edit_bench("a first build")

    def snapshot() -> tuple[object, ...]:  # sorted: the engine lists images of the same second in any order
        return (
            sorted(build_vm.docker("images", "-q").stdout.split()),
            sorted(Path(build_vm.tmpdir).rglob("*")),
            build_vm.job_folders(),
        )

    before = snapshot()
    done = build_vm.inv("build", "--dry-run")
    assert f"--tmpdir {build_vm.tmpdir} (" in done.stdout
    assert "overlay2" in done.stdout
    assert " build --progress=plain " in done.stdout
    assert "--tmpdir /nowhere: " in build_vm.inv_refused("build", "--dry-run", "--tmpdir", "/nowhere")
    assert snapshot() == before
    logins = build_vm.network.vm_sshd.logins()
    done = build_vm.inv("build")
    assert build_vm.network.vm_sshd.logins() == logins + 1
    assert re.search(r"\[prod \d+/\d+\] COPY bench /opt/qlora-fleet/bench", done.stdout)
    assert f"{IMAGE} {image_id(build_vm)[7:19]} is built" in done.stdout
    job = build_vm.job_folders()[-1]
    assert json.loads((job / "outcome.json").read_text())["image_id"] == image_id(build_vm)
    log = (build_vm.project / "results" / "jobs" / f"{job.name}.txt").read_text()
    assert "writing image sha256:" in log
    built = snapshot()
    assert UP_TO_DATE in build_vm.inv("build").stdout
    assert snapshot() == built


def test_one_job_serves_a_closed_laptop_a_second_one_and_a_broken_connection(build_vm: BuildVm) -> None:
    build_vm.edit_bench("one job")
    jobs = len(build_vm.job_folders())
    closed, client = build_vm.start_inv_to_gate("build")
    os.killpg(closed.pid, signal.SIGKILL)
    closed.communicate(timeout=30)
    laptops = [build_vm.start_inv("build", IMAGE_CLIENT=client) for _ in range(2)]
    for laptop in laptops:
        wait_for_line(laptop, "following it")
    assert build_vm.network.vm_sshd.kill_sessions() > 0
    for laptop in laptops:
        wait_for_line(laptop, "reconnecting")
    build_vm.open_gate()
    for laptop in laptops:
        assert "is built" in build_vm.wait_for_exit(laptop)[0]
    assert len(build_vm.job_folders()) == jobs + 1


def test_a_build_that_was_stopped_or_whose_engine_was_killed_can_be_tried_again(build_vm: BuildVm) -> None:
    build_vm.edit_bench("a cancelled build, and a killed engine")
    process, _ = build_vm.start_inv_to_gate("build")
    assert "stopped" in build_vm.inv("build", "--cancel").stdout
    assert "`inv build`" in build_vm.wait_for_exit(process, code=3, timeout_sec=120)[1]
    process, _ = build_vm.start_inv_to_gate("build")
    build_vm.kill_engine()
    build_vm.open_gate()
    assert "`inv build`" in build_vm.wait_for_exit(process, code=3)[1]
    build_vm.repair()
    assert "is built" in build_vm.inv("build").stdout


def test_weights_have_their_own_layers_which_a_rebuild_after_a_prune_does_not_change(build_vm: BuildVm) -> None:
    build_vm.put_model()
    flags = build_vm.model_flags(MODEL)
    build_vm.inv(*flags, "build")
    old, before = image_id(build_vm), build_vm.layers(IMAGE)
    history = build_vm.docker(
        "history", "--format", "{{.Size}} {{.CreatedBy}}", "--no-trunc", IMAGE
    ).stdout.splitlines()
    weights = [line for line in history if "ADD model[s]/" in line and not line.startswith("0B")]
    assert len(weights) == 3  # two shards, and the small files
    build_vm.docker("tag", old, f"{REGISTRY}/{NAMESPACE}/qlora-fleet:old")
    build_vm.edit_bench("a new image")
    build_vm.inv(*flags, "build")
    planned = json.loads(build_vm.inv("vm.prune", "--dry-run", "--json").stdout)
    assert old in planned["old_images"]
    assert planned["unused_cache_bytes"] > 0
    assert "nothing was removed; pass --yes" in build_vm.inv("vm.prune", code=4).stderr
    assert "freed " in build_vm.inv("vm.prune", "--yes").stdout
    assert build_vm.docker("image", "inspect", old, check=False).returncode != 0
    left = json.loads(build_vm.inv("vm.prune", "--dry-run", "--json").stdout)
    assert (left["old_images"], left["unused_cache_bytes"]) == ({}, 0)
    build_vm.docker("image", "inspect", IMAGE, "standin:base")
    # A complete rebuild, as after a new base: weights and stack have the same digests.
    build_vm.edit_bench("a complete rebuild")
    build_vm.inv(*flags, "build")
    rebuilt = build_vm.layers(IMAGE)
    assert rebuilt[2:21] == before[2:21]
    assert rebuilt[-1] != before[-1]


def test_a_failed_step_is_reported_by_its_last_output_line_and_its_log_is_copied(build_vm: BuildVm) -> None:
    settings = build_vm.folder / "extra.yaml"
    settings.write_text(json.dumps({"image": {"extra_packages": ["nosuchpackage"]}}))
    done = build_vm.inv("-f", str(settings), "build", code=1)
    assert "E: Unable to locate package nosuchpackage (step [base 2/2], exit code: 100)" in done.stderr
    log = Path(done.stderr.strip().rpartition("; log: ")[2])
    assert log.parent == build_vm.project / "results" / "jobs"
    assert "nosuchpackage" in log.read_text()


def test_a_tmpdir_that_fills_up_during_a_build_leaves_no_partial_files_that_are_used(build_vm: BuildVm) -> None:
    build_vm.vm.mount_small_disk("/mnt/share", megabytes=700, owner=USER)
    filler_bytes = "$(($(stat -f -c '%a*%S' /mnt/share) - 100000))"
    client = build_vm.gated_client(
        "base/json", after=f"[ -e /mnt/share/x ] || fallocate -l {filler_bytes} /mnt/share/x", is_open=True
    )
    build_vm.edit_bench("a full share")
    done = build_vm.inv("build", "--tmpdir", "/mnt/share", code=3, IMAGE_CLIENT=client)
    assert "No space left on device" in done.stderr
    assert "`inv build --tmpdir /mnt/share`" in done.stderr
    build_vm.vm.run("rm", "/mnt/share/x")
    assert "is built" in build_vm.inv("build", "--tmpdir", "/mnt/share").stdout
