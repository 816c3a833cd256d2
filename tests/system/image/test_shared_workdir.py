"""A share where everybody may write (mode 1777), and another user who was there first: two real users of the VM."""

import pytest

from tests.support.machines.build_vm import OTHER_UID, OTHER_USER, BuildVm

pytestmark = pytest.mark.timeout(600)
PLANTED = {
    "a folder with a link to something precious": "mkdir -m 777 '{ours}'; ln -s '{precious}' '{ours}/context'",
    "a link to something precious": "ln -s '{precious}' '{ours}'",
    "an engine's disk": "mkdir -m 755 '{ours}'; truncate -s 9M '{ours}/engine.ext4'; mkfs.ext4 -q '{ours}/engine.ext4'",
}


def test_what_another_user_made_in_our_place_is_refused_by_every_task_and_nothing_precious_is_touched(
    build_vm: BuildVm,
) -> None:
    build_vm.edit_bench("shared ground")
    precious = build_vm.network.home / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("all of it")
    build_vm.own(precious)
    jobs = build_vm.jobs()
    for number, (what, script) in enumerate(PLANTED.items()):
        share = build_vm.shared_folder(f"share-{number}")
        ours = share / "qlora-fleet"
        build_vm.as_other_user(script.format(ours=ours, precious=precious))
        for words in (("build",), ("build", "--dry-run"), ("model.fetch", "--model", "org/name"), ("vm.engine",)):
            refused = build_vm.refused(*words, "--tmpdir", str(share), code=4)
            assert f"{ours}: " in refused, what
            assert f"{OTHER_USER} (uid {OTHER_UID})" in refused
    assert (precious / "thesis.tex").read_text() == "all of it"
    assert build_vm.jobs() == jobs
    # Root is as careful: the disk that the other user made is not mounted.
    done = build_vm.inv_as_root_of_the_vm("vm.engine", "--tmpdir", str(build_vm.folder / "share-2"), code=4)
    assert f"{OTHER_USER} (uid {OTHER_UID})" in done.stderr
    assert build_vm.vm.run("findmnt", "/var/lib/qlora-fleet-engine", check=False).stdout == ""


def test_a_login_finds_its_way_past_what_others_left_in_memory(build_vm: BuildVm) -> None:
    build_vm.inv("build")
    build_vm.as_other_user("ln -s /nowhere /dev/shm/qlora-fleet-login-mallory")
    try:
        build_vm.inv("push")
    finally:
        build_vm.as_other_user("rm /dev/shm/qlora-fleet-login-mallory")
