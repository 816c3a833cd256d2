"""A share where any user may write (mode 1777), and paths of another user on it: two real users of the VM."""

import pytest

from tests.support.machines.build_vm import OTHER_UID, OTHER_USER, BuildVm

pytestmark = pytest.mark.timeout(600)
PLANTED = {
    "a folder with a link to valuable files": "mkdir -m 777 '{ours}'; ln -s '{outside}' '{ours}/context'",
    "a link to valuable files": "ln -s '{outside}' '{ours}'",
    "an engine's disk": "mkdir -m 755 '{ours}'; truncate -s 9M '{ours}/engine.ext4'; mkfs.ext4 -q '{ours}/engine.ext4'",
}


def test_a_work_directory_of_another_user_is_refused_by_every_task_and_links_in_it_are_not_followed(
    build_vm: BuildVm,
) -> None:
    build_vm.edit_bench("a shared work directory")
    outside = build_vm.network.home / "outside"
    outside.mkdir()
    (outside / "thesis.tex").write_text("content")
    build_vm.chown_to_user(outside)
    jobs = build_vm.job_folders()
    for number, (case, script) in enumerate(PLANTED.items()):
        share = build_vm.create_shared_folder(f"share-{number}")
        ours = share / "qlora-fleet"
        build_vm.run_as_other_user(script.format(ours=ours, outside=outside))
        for command in (("build",), ("build", "--dry-run"), ("model.fetch", "--model", "org/name"), ("vm.engine",)):
            refused = build_vm.inv_refused(*command, "--tmpdir", str(share), code=4)
            assert f"{ours}: " in refused, case
            assert f"{OTHER_USER} (uid {OTHER_UID})" in refused
    assert (outside / "thesis.tex").read_text() == "content"
    assert build_vm.job_folders() == jobs
    # Root does not mount the disk of the other user either.
    done = build_vm.inv_on_vm_as_root("vm.engine", "--tmpdir", str(build_vm.folder / "share-2"), code=4)
    assert f"{OTHER_USER} (uid {OTHER_UID})" in done.stderr
    assert build_vm.vm.run("findmnt", "/var/lib/qlora-fleet-engine", check=False).stdout == ""


def test_a_login_ignores_other_users_files_with_its_prefix(build_vm: BuildVm) -> None:
    build_vm.inv("build")
    build_vm.run_as_other_user("ln -s /nowhere /dev/shm/qlora-fleet-login-mallory")
    try:
        build_vm.inv("push")
    finally:
        build_vm.run_as_other_user("rm /dev/shm/qlora-fleet-login-mallory")
