"""`inv tenancy` and its verbs against a stand-in of Oracle Cloud: what is printed, written, asked and refused."""

import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("oci", reason="Oracle's SDK is not installed: `make sdk` installs it")

import yaml
from invoke import Context

from tasks.errors import RetryableError, TaskFailed, UsageError
from tasks.oci.kubeconfig import write_kubeconfig
from tasks.oci.repository import make_repository, who_may_push
from tasks.oci.show import show_tenancy
from tests.support.machines.fake_tenancy import TENANCY, FakeTenancy, ocid

pytestmark = pytest.mark.usefixtures("tenancy")
Make = Callable[..., Context]
Said = pytest.CaptureFixture[str]
SERVER = "https://130.61.0.1:6443"
OF_SERVICE = {
    "clusters": [{"name": "cluster-c", "cluster": {"server": SERVER, "certificate-authority-data": "QUFB"}}],
    "users": [{"name": "user-c", "user": {"exec": {"command": "oci"}}}],
}
WITHOUT_TLS = {"clusters": [{"name": "c", "cluster": {"server": "http://x"}}]}


def home(project: Path) -> Path:
    return project.parent / "home"


def test_the_tenancy_is_shown_with_the_settings_that_follow(context: Make, capsys: Said, project: Path) -> None:
    (home(project) / ".invoke.yaml").write_text("# mine\nbench: { profile: gpu }\n")
    show_tenancy(context(), write=True)
    said = capsys.readouterr().out
    for words in ("acme", "fra.ocir.io/axns", "1 of 4 in use in Uocm:EU-FRANKFURT-1-AD-1", "10.0.20.5:/models"):
        assert words in said
    written = (home(project) / ".invoke.yaml").read_text()
    assert written.startswith("# mine\nbench: { profile: gpu }\n")
    assert yaml.safe_load(written) == {
        "bench": {"profile": "gpu"},
        "registry": {
            "image": "fra.ocir.io/axns/qlora-fleet:1",
            "user": "axns/oracleidentitycloudservice/me@example.com",
        },
        "fleet": {"kind": "pods", "size": 2},
        "cluster": {
            "instance_type": "VM.GPU.A10.1",
            "fss": {"volume_handle": f"{ocid('filesystem', 'fs')}:10.0.20.5:/models"},
        },
    }


def test_what_may_not_be_read_is_a_line_and_the_rest_is_shown(
    tenancy: FakeTenancy, context: Make, capsys: Said
) -> None:
    tenancy.fail("GET .*/mountTargets", 404, "NotAuthorizedOrNotFound")
    with pytest.raises(TaskFailed, match="1 of the questions were not answered"):
        show_tenancy(context(), write=False)
    said = capsys.readouterr().out
    assert "! listing mount targets: 404" in said
    assert "Allow group GROUP to read file-family in tenancy" in said
    assert "VM.GPU.A10.1" in said


def test_credentials_that_are_refused_are_one_line_and_one_question(tenancy: FakeTenancy, context: Make) -> None:
    tenancy.key_id = "another"
    with pytest.raises(UsageError, match="is not accepted in eu-frankfurt-1"):
        show_tenancy(context(), write=True)
    assert len(tenancy.requests) == 1


def test_an_empty_tenancy_says_what_to_do(tenancy: FakeTenancy, context: Make, capsys: Said) -> None:
    for list in tenancy.world.lists.values():
        list.clear()
    show_tenancy(context(), write=False)
    said = capsys.readouterr().out
    assert "none; `inv tenancy.repository` makes one" in said
    assert "none allowed here (limit gpu-a10-count)" in said
    assert "tenancy.compartment names another" in said


def test_a_repository_is_made_once_private_and_immutable_where_asked(
    tenancy: FakeTenancy, context: Make, capsys: Said
) -> None:
    make_repository(context(), "team/new", immutable=True)
    said = capsys.readouterr().out
    assert "made fra.ocir.io/axns/team/new, private, immutable: a tag is pushed once" in said
    assert "Allow group builders to manage repos" in said
    assert "readers" not in said
    body = tenancy.bodies[0]
    assert (body["displayName"], body["isPublic"], body["isImmutable"]) == ("team/new", False, True)
    assert body["compartmentId"] == TENANCY
    make_repository(context(), "team/new", immutable=False)
    assert "fra.ocir.io/axns/team/new is there, private" in capsys.readouterr().out
    assert len(tenancy.bodies) == 1


def test_a_repository_without_the_right_names_the_policy(tenancy: FakeTenancy, context: Make) -> None:
    tenancy.fail("POST .*/container/repositories", 403, "NotAuthorized")
    with pytest.raises(UsageError, match="Allow group GROUP to manage repos in tenancy"):
        make_repository(context(), "new", immutable=False)


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("fra.ocir.io/others/r:1", "is not of this tenancy"),
        ("iad.ocir.io/axns/r:1", "iad.ocir.io is not the registry of eu-frankfurt-1"),
        ("docker.io/r", "is not of this tenancy"),
    ],
)
def test_a_repository_elsewhere_is_refused(tenancy: FakeTenancy, context: Make, image: str, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        make_repository(context(text=f"registry: {{image: '{image}'}}"), None, immutable=False)
    assert not tenancy.bodies


def test_who_may_push_is_read_from_statements() -> None:
    deny = "Deny group x to manage repos in tenancy"
    assert who_may_push(
        ["ALLOW  any-user TO use repos in compartment a:b", deny, "Allow group y to inspect repos in t"]
    ) == ["ALLOW any-user TO use repos in compartment a:b"]


@pytest.fixture
def service(tenancy: FakeTenancy) -> FakeTenancy:
    tenancy.world.kubeconfig = yaml.safe_dump(OF_SERVICE)
    return tenancy


def test_a_kubeconfig_has_our_program_and_no_secret(
    service: FakeTenancy, context: Make, project: Path, capsys: Said
) -> None:
    write_kubeconfig(context(), None, None, None)
    path = home(project) / ".kube" / "config"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    made = yaml.safe_load(path.read_text())
    program = made["users"][0]["user"]["exec"]
    assert program["args"][:4] == ["-P", "-m", "tasks.oci", "token"]
    assert "containerengine.eu-frankfurt-1.oraclecloud.com" in program["args"]
    assert made["clusters"][0] == {"name": "training", "cluster": OF_SERVICE["clusters"][0]["cluster"]}
    assert made["current-context"] == "training"
    assert service.bodies == [{"tokenVersion": "2.0.0", "endpoint": "PUBLIC_ENDPOINT"}]
    write_kubeconfig(context(), "training", None, None)
    assert "nothing was changed" in capsys.readouterr().out


def test_a_kubeconfig_is_merged_and_the_old_one_kept(
    service: FakeTenancy, context: Make, project: Path, capsys: Said
) -> None:
    path = project / "kube"
    other = {"name": "other", "user": {"auth-provider": {"config": {"expiry": "2026-01-02T03:04:05Z"}}}}
    old = {
        "apiVersion": "v1",
        "kind": "Config",
        "users": [other],
        "current-context": "other",
        "preferences": {"a": True},
    }
    path.write_text(yaml.safe_dump(old))
    write_kubeconfig(context(), None, "private", "kube")
    made = yaml.safe_load(path.read_text())
    assert made["users"][0] == other
    assert (made["current-context"], made["preferences"]) == ("other", {"a": True})
    assert [one["name"] for one in made["contexts"]] == ["training"]
    kept = [one for one in project.iterdir() if one.name.startswith("kube.")]
    assert [yaml.safe_load(one.read_text()) for one in kept] == [old]
    assert [stat.S_IMODE(one.stat().st_mode) for one in (path, *kept)] == [0o600] * 2
    assert service.bodies[0]["endpoint"] == "PRIVATE_ENDPOINT"
    assert "a bastion's tunnel" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("clusters: [", "kube:1: cannot be read as YAML; mend it, or name another with --file"),
        ("- a", "kube: is no kubeconfig"),
        ("kind: Pod", "kube: is no kubeconfig"),
        ("clusters: [1]", "kube: is no kubeconfig"),
        ("users: [{name: [a]}]", "kube: is no kubeconfig"),
        ("clusters: [{name: training, cluster: a}]", "kube: is no kubeconfig"),
        ("users: {a: b}", "kube: is no kubeconfig"),
        ("a: \x00", "kube: cannot be read as YAML"),
    ],
)
def test_a_kubeconfig_that_cannot_be_read_is_never_written_over(
    service: FakeTenancy, context: Make, project: Path, text: str, words: str
) -> None:
    (project / "kube").write_text(text)
    with pytest.raises(UsageError, match=re.escape(words)):
        write_kubeconfig(context(), None, None, "kube")
    assert (project / "kube").read_text() == text
    assert service.requests == []


@pytest.mark.parametrize("odd", [{"id": None}, {"id": ""}, {"endpoints": "10.0.0.7:6443"}])
def test_a_cluster_that_is_not_as_the_api_has_them_is_one_line(
    tenancy: FakeTenancy, context: Make, project: Path, odd: dict[str, object]
) -> None:
    tenancy.world.lists["/clusters"][0] |= odd
    with pytest.raises(
        RetryableError, match=r"^listing clusters: an object is not as the API has them: .*; is a proxy"
    ):
        write_kubeconfig(context(), None, None, "kube")
    assert not (project / "kube").exists()


@pytest.mark.parametrize(
    ("path", "odd", "line"),
    [
        ("/limitValues", {"value": "four"}, "reading GPU limits"),
        ("/limitValues", {"availabilityDomain": None}, "reading GPU limits"),
        ("/availabilityDomains", {"name": None}, "listing availability domains"),
        ("/mountTargets", {"privateIpIds": {"a": 1}}, "listing mount targets"),
        ("/mountTargets", {"exportSetId": ""}, "listing mount targets"),
        ("/exports", {"path": 1}, "listing mount targets"),
        ("/container/repositories", {"displayName": None}, "listing repositories"),
    ],
)
def test_what_is_not_as_the_api_has_it_is_a_line_and_the_rest_is_shown(
    tenancy: FakeTenancy, context: Make, capsys: Said, path: str, odd: dict[str, object], line: str
) -> None:
    lists = tenancy.world.lists
    lists[next(list for list in lists if list.endswith(path))][0] |= odd
    with pytest.raises(TaskFailed, match="1 of the questions were not answered"):
        show_tenancy(context(), write=False)
    said = " ".join(capsys.readouterr().out.split())
    assert f"! {line}: an object is not as the API has them" in said


@pytest.mark.usefixtures("service")
def test_another_cluster_of_the_same_name_is_not_written_over(context: Make, project: Path) -> None:
    old = yaml.safe_dump({"clusters": [{"name": "training", "cluster": {"server": "https://other"}}]})
    (project / "kube").write_text(old)
    with pytest.raises(UsageError, match="training is another cluster there, https://other"):
        write_kubeconfig(context(), None, None, "kube")
    assert (project / "kube").read_text() == old


@pytest.mark.parametrize(
    ("context_name", "user", "server", "is_refused"),
    [
        ("mine", "training", "https://other", True),  # our program's token would go there
        ("training", "me", "https://other", True),
        ("mine", "training", SERVER, False),
        ("mine", "me", "https://other", False),
    ],
)
@pytest.mark.usefixtures("service")
def test_no_context_of_another_cluster_changes(
    context_name: str, user: str, server: str, is_refused: bool, context: Make, project: Path
) -> None:
    old = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": user, "user": {"token": "t"}}],
        "contexts": [{"name": context_name, "context": {"cluster": "c", "user": user}}],
    }
    (project / "kube").write_text(yaml.safe_dump(old))
    if not is_refused:
        write_kubeconfig(context(), None, None, "kube")
        return
    with pytest.raises(UsageError, match=f"context {context_name} goes to another cluster there, {server}, as user"):
        write_kubeconfig(context(), None, None, "kube")
    assert yaml.safe_load((project / "kube").read_text()) == old


@pytest.mark.parametrize(
    ("answer", "cut", "error", "words"),
    [
        ("<html>", False, UsageError, "is no kubeconfig"),
        ("{}", False, UsageError, "names no cluster"),
        (yaml.safe_dump(WITHOUT_TLS), False, UsageError, "is not safe: http://x"),
        (yaml.safe_dump(OF_SERVICE), True, TaskFailed, "no whole answer"),
    ],
)
def test_an_answer_of_the_service_that_is_no_whole_kubeconfig_is_not_written(
    tenancy: FakeTenancy, context: Make, project: Path, answer: str, cut: bool, error: type[TaskFailed], words: str
) -> None:
    tenancy.world.kubeconfig = answer
    if cut:
        tenancy.fail("kubeconfig/content", 200, cut=True)
    with pytest.raises(error, match=re.escape(words)):
        write_kubeconfig(context(), None, None, "kube")
    assert not (project / "kube").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            (None, None),
            r"several clusters: training \(ocid1.*one\), training \(ocid1.*two\); type: inv tenancy.kubeconfig",
        ),
        (("training", None), "2 clusters called training"),
        (("live", None), "no cluster live in this compartment; there are training"),
        ((ocid("nodepool", "x"), None), "that is the OCID of a nodepool"),
        ((ocid("cluster", "two"), "public"), "has no public endpoint; type: inv tenancy.kubeconfig --endpoint private"),
        ((None, "nearest"), "expected public or private, found 'nearest'"),
    ],
)
def test_the_cluster_must_be_the_one_that_is_meant(
    service: FakeTenancy, context: Make, words: tuple[str | None, str | None], message: str
) -> None:
    two = {**service.world.lists["/clusters"][0], "id": ocid("cluster", "two"), "endpoints": {"privateEndpoint": "x"}}
    service.world.lists["/clusters"].append(two)
    with pytest.raises(UsageError, match=message):
        write_kubeconfig(context(), *words, "kube")
