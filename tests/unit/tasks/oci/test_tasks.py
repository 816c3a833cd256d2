"""`inv tenancy` and its subcommands against a fake Oracle Cloud: output, written files, requests and refusals."""

import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("oci", reason="Oracle's SDK is not installed: `make sdk` installs it")

import yaml
from invoke import Context

from tasks import ns
from tasks.errors import ConfirmationRequired, RetryableError, TaskFailed, UsageError
from tasks.oci.oke_clusters import write_kubeconfig
from tasks.oci.repository import create_repository
from tasks.oci.show import show_tenancy
from tests.support.answers import print_answer
from tests.support.dry_runs import plan_of
from tests.support.machines.fake_tenancy import TENANCY, FakeTenancy, ocid

pytestmark = pytest.mark.usefixtures("tenancy")
Make = Callable[..., Context]
Capture = pytest.CaptureFixture[str]
SERVER = "https://130.61.0.1:6443"
SERVICE_KUBECONFIG = {
    "clusters": [{"name": "cluster-c", "cluster": {"server": SERVER, "certificate-authority-data": "QUFB"}}],
    "users": [{"name": "user-c", "user": {"exec": {"command": "oci"}}}],
}
WITHOUT_TLS = {"clusters": [{"name": "c", "cluster": {"server": "http://x"}}]}


def home(project: Path) -> Path:
    return project.parent / "home"


def test_the_tenancy_is_shown_with_the_derived_settings(context: Make, capsys: Capture) -> None:
    answer = show_tenancy(context())
    print_answer(answer)
    survey, _, settings = capsys.readouterr().out.partition("settings for ~/.invoke.yaml:")
    assert yaml.safe_load(survey) | {"errors": []} == answer.data["tenancy"]
    derived, handle = answer.data["settings"], f"{ocid('filesystem', 'fs')}:10.0.20.5:/models"
    assert yaml.safe_load(settings) == derived
    assert derived == {
        "registry": {
            "image": "fra.ocir.io/axns/qlora-fleet:1",
            "user": "axns/oracleidentitycloudservice/me@example.com",
        },
        "fleet": {"kind": "pods", "size": 2},
        "cluster": {"instance_type": "VM.GPU.A10.1", "volume": {"handle": handle}},
    }


def test_an_empty_tenancy_is_shown_with_remedies(tenancy: FakeTenancy, context: Make, capsys: Capture) -> None:
    for items in tenancy.collections.values():
        items.clear()
    print_answer(show_tenancy(context()))
    output = capsys.readouterr().out
    assert all(token in output for token in ("`inv tenancy.repository`", "gpu-a10-count", "tenancy.compartment"))


def test_a_repository_is_created_once_private_and_immutable_if_requested(
    tenancy: FakeTenancy, context: Make, capsys: Capture
) -> None:
    create_repository(context(), "team/new", immutable=True)
    assert "created fra.ocir.io/axns/team/new, private, immutable" in capsys.readouterr().out
    body = tenancy.bodies[0]
    assert (body["displayName"], body["isPublic"], body["isImmutable"]) == ("team/new", False, True)
    assert body["compartmentId"] == TENANCY
    create_repository(context(), "team/new", immutable=False)
    assert "fra.ocir.io/axns/team/new exists in the tenancy's root, private" in capsys.readouterr().out
    assert len(tenancy.bodies) == 1


def test_a_repository_in_another_compartment_is_not_created_again(tenancy: FakeTenancy, context: Make) -> None:
    tenancy.fail("POST .*/container/repositories", 409, "NAMESPACE_CONFLICT")
    with pytest.raises(ConfirmationRequired, match=r"creating repository mine in .*: 409 NAMESPACE_CONFLICT"):
        create_repository(context(), "mine", immutable=False)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("fra.ocir.io/others/r:1", "registry.image: fra.ocir.io/others/r:1 "),
        ("iad.ocir.io/axns/r:1", "expected fra.ocir.io/axns/...; or set tenancy.region"),
    ],
)
def test_a_repository_elsewhere_is_refused(tenancy: FakeTenancy, context: Make, image: str, expected: str) -> None:
    with pytest.raises(UsageError, match=re.escape(expected)):
        create_repository(context(text=f"registry: {{image: '{image}'}}"), None, immutable=False)
    assert not tenancy.bodies


@pytest.fixture
def service(tenancy: FakeTenancy) -> FakeTenancy:
    tenancy.kubeconfig = yaml.safe_dump(SERVICE_KUBECONFIG)
    return tenancy


def test_a_kubeconfig_has_our_credential_plugin_and_no_secret(
    service: FakeTenancy, context: Make, project: Path, capsys: Capture
) -> None:
    write_kubeconfig(context(), None, None, None)
    path = home(project) / ".kube" / "config"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    kubeconfig = yaml.safe_load(path.read_text())
    program = kubeconfig["users"][0]["user"]["exec"]
    assert program["args"][:4] == ["-P", "-m", "tasks.oci", "token"]
    assert "containerengine.eu-frankfurt-1.oraclecloud.com" in program["args"]
    assert kubeconfig["clusters"][0] == {"name": "training", "cluster": SERVICE_KUBECONFIG["clusters"][0]["cluster"]}
    assert kubeconfig["current-context"] == "training"
    assert service.bodies == [{"tokenVersion": "2.0.0", "endpoint": "PUBLIC_ENDPOINT"}]
    capsys.readouterr()
    write_kubeconfig(context(), "training", None, None)
    assert yaml.safe_load(path.read_text()) == kubeconfig
    assert "wrote" not in capsys.readouterr().out


def test_a_file_with_anything_else_is_never_written_over(service: FakeTenancy, context: Make, project: Path) -> None:
    (project / "kube").write_text("kind: Config")
    with pytest.raises(UsageError, match=r"kube: exists, .*--file ~/\.kube/training"):
        write_kubeconfig(context(), None, None, "kube")
    assert (project / "kube").read_text() == "kind: Config"
    (project / "kube").unlink()
    write_kubeconfig(context(), None, "private", "kube")
    assert service.bodies[-1]["endpoint"] == "PRIVATE_ENDPOINT"


@pytest.mark.parametrize("odd", [{"id": ""}, {"endpoints": 7}])
def test_a_malformed_cluster_is_one_line(
    tenancy: FakeTenancy, context: Make, project: Path, odd: dict[str, object]
) -> None:
    tenancy.collections["/clusters"][0] |= odd
    with pytest.raises(RetryableError, match=r"; is a proxy intercepting"):
        write_kubeconfig(context(), None, None, "kube")
    assert not (project / "kube").exists()


@pytest.mark.parametrize(
    ("path", "odd", "line"),
    [
        ("/mountTargets", None, "! listing mount targets: 404 .* Allow group GROUP to read file-family in tenancy"),
        ("/limitValues", {"value": "four"}, "reading GPU limits: not an API response"),
        ("/exports", {"path": 1}, "path is 1"),
    ],
)
def test_a_refused_request_or_malformed_object_is_a_line_and_the_rest_is_shown(
    tenancy: FakeTenancy, context: Make, capsys: Capture, path: str, odd: dict[str, object] | None, line: str
) -> None:
    if odd is None:
        tenancy.fail(f"GET .*{path}", 404, "NotAuthorizedOrNotFound")
    else:
        tenancy.collections[path][0] |= odd
    with pytest.raises(TaskFailed, match=r"^1 "):
        print_answer(show_tenancy(context()))
    output = " ".join(capsys.readouterr().out.split())
    assert re.search(line, output)
    assert "VM.GPU.A10.1" in output


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("clusters: [", "kubeconfig for training has no cluster"),
        ("{}", "kubeconfig for training has no cluster"),
        (yaml.safe_dump(WITHOUT_TLS), "is not safe: http://x"),
    ],
)
def test_an_invalid_kubeconfig_of_the_service_is_not_written(
    tenancy: FakeTenancy, context: Make, project: Path, answer: str, expected: str
) -> None:
    tenancy.kubeconfig = answer
    with pytest.raises(UsageError, match=re.escape(expected)):
        write_kubeconfig(context(), None, None, "kube")
    assert not (project / "kube").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, None), r"training \(ocid1.*one\), training \(ocid1.*two\); type: inv tenancy.kubeconfig"),
        (("training", None), "2 clusters .*training"),
        (("live", None), "live .*; .*training"),
        ((ocid("cluster", "two"), "public"), "; type: inv tenancy.kubeconfig --endpoint private"),
        ((None, "nearest"), "expected public or private, found 'nearest'"),
    ],
)
def test_the_cluster_and_its_endpoint_must_be_unambiguous(
    service: FakeTenancy, context: Make, arguments: tuple[str | None, str | None], message: str
) -> None:
    two = {
        **service.collections["/clusters"][0],
        "id": ocid("cluster", "two"),
        "endpoints": {"privateEndpoint": "x"},
    }
    service.collections["/clusters"].append(two)
    with pytest.raises(UsageError, match=message):
        write_kubeconfig(context(), *arguments, "kube")


@pytest.mark.parametrize("name", ["repository", "kubeconfig"])
def test_a_dry_run_prints_its_plan_as_json_and_changes_nothing(
    name: str, service: FakeTenancy, project: Path, context: Make, capsys: Capture
) -> None:
    plan_of(ns.collections["tenancy"][name], context(text="{}"), project.parent, capsys)
    reads = "^POST .*/kubeconfig/content"
    assert service.count_requests("^(PUT|POST|DELETE)") == service.count_requests(reads)
