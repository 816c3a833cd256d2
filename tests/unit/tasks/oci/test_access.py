"""The real SDK against a fake of the services: its requests, and the translation of its errors."""

import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("oci", reason="Oracle's SDK is not installed: `make sdk` installs it")

from invoke import Context
from oci.container_engine import ContainerEngineClient
from oci.exceptions import ServiceError
from oci.identity import IdentityClient

from tasks.doctor.check import CheckContext
from tasks.doctor.checks import oci as doctor
from tasks.errors import RetryableError, UsageError
from tasks.faults import passed
from tasks.oci import clients, commands
from tasks.oci.clients import connect, get_namespace, resolve_compartment
from tasks.oci.discovery import get_user_name
from tasks.settings.layers import Settings, load
from tests.support.cases import Case, load_cases
from tests.support.machines.fake_tenancy import TENANCY, ApiKey, FakeTenancy, ocid

pytestmark = pytest.mark.usefixtures("tenancy")
Make = Callable[..., Settings]
REQUEST = ("listing clusters", "read clusters")


def listed(settings: Settings) -> list[object]:
    api = connect(settings)
    return api.list_all(*REQUEST, api.client(ContainerEngineClient).list_clusters, TENANCY)


def test_accepted_credentials_report_region_and_namespace(tenancy: FakeTenancy, settings: Make) -> None:
    result = doctor.login(CheckContext(settings()))
    assert result == passed("profile DEFAULT of ~/.oci/config: accepted in eu-frankfurt-1, namespace axns")
    assert tenancy.count_requests("GET /n") == 1


def test_a_list_is_read_to_its_last_page_with_retries(tenancy: FakeTenancy, settings: Make) -> None:
    tenancy.collections["/clusters"] = [{"id": ocid("cluster", str(n))} for n in range(7)]
    tenancy.fail("/clusters", 503, "Busy", times=2)
    assert len(listed(settings())) == 7
    assert tenancy.count_requests("GET .*/clusters") == 6


@pytest.mark.parametrize("case", load_cases(__file__, "api_errors.yaml"))
def test_an_error_of_the_api_is_one_line_with_what_to_do(case: Case) -> None:
    answer = case["input"]
    error = clients.to_task_error(
        ServiceError(
            answer["status"],
            answer.get("code"),
            {"opc-request-id": "REQUEST/7"},
            answer.get("message", "refused"),
        ),
        "listing clusters",
        if_rejected="is the key uploaded",
        if_denied="policy",
    )
    assert type(error).__name__ == case["kind"]
    assert str(error).startswith(f"listing clusters: {answer['status']}")
    assert case["says"] in str(error)
    assert "REQUEST/7" in str(error)


@pytest.mark.parametrize(
    ("fault", "tries", "error", "expected"),
    [
        ({"status": 503, "code": "Busy"}, 5, RetryableError, r"503 Busy: refused; .*REQUEST/7"),
        ({"status": 403, "code": 7}, 1, UsageError, "403 7: refused; .*Allow group GROUP to read clusters in tenancy"),
        ({"status": 401, "code": "NotAuthenticated"}, 1, UsageError, r"profile DEFAULT of ~/.oci/config .*clock right"),
        ({"status": 200, "html": "<html>Größe</html>"}, 1, RetryableError, "not an API response: .*; is a proxy"),
    ],
)
def test_an_answer_that_is_not_a_list_is_one_line(
    tenancy: FakeTenancy, settings: Make, fault: dict[str, Any], tries: int, error: type[Exception], expected: str
) -> None:
    tenancy.fail("/clusters", **fault)
    with pytest.raises(error, match=f"listing clusters: .*{expected}"):
        listed(settings())
    assert tenancy.count_requests("GET .*/clusters") == tries


def test_a_service_that_is_not_reached_is_a_retryable_error(settings: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(RetryableError, match=r"listing clusters: .*eu-frankfurt-1"):
        listed(settings())


@pytest.mark.parametrize("phrase", ["p äss'\"$(rm)\\n;=%s 🔑", "#hash"])
def test_a_key_with_a_pass_phrase_of_any_letters_signs(
    settings: Make, project: Path, keys: ApiKey, phrase: str
) -> None:
    keys.write_config(project.parent / "home", phrase=phrase)
    assert get_namespace(connect(settings())) == "axns"


def test_a_session_signs_with_its_token(settings: Make, project: Path, keys: ApiKey) -> None:
    token = project.parent / "home" / ".oci" / "token"
    token.write_text("e30.eyJleHAiOiA0MTAyNDQ0ODAwfQ.c2ln")  # {"exp": 4102444800}
    token.chmod(0o600)
    keys.write_config(project.parent / "home", security_token_file=str(token))
    api = connect(settings())
    assert api.credentials.signer.api_key == f"ST${token.read_text()}"
    assert get_user_name(api) is None  # the profile's user need not be the session's


def test_a_compartment_is_found_by_its_name(settings: Make) -> None:
    chosen = settings("tenancy: {compartment: team-4}")
    assert resolve_compartment(chosen, connect(chosen)) == (ocid("compartment", "team-4"), "team-4")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("compartment: missing", "team-0, team-1"),
        (f"compartment: {ocid('compartment', 'x')}", f"tenancy.compartment: reading {ocid('compartment', 'x')}: 404"),
        ("region: eu-frankfurt-7", "eu-frankfurt-2"),
        ("region: ../x", "tenancy.region: '../x': no such region"),
        ("profile: WORK", "no profile WORK; set tenancy.profile"),
        ("config_file: nowhere", "`oci setup config`"),
    ],
)
def test_a_wrong_setting_is_one_line(settings: Make, text: str, expected: str) -> None:
    chosen = settings(f"tenancy: {{{text}}}")
    with pytest.raises(UsageError, match=re.escape(expected)):
        resolve_compartment(chosen, connect(chosen))


def test_compartments_with_the_same_name_are_all_listed(tenancy: FakeTenancy, settings: Make) -> None:
    tenancy.collections["/compartments"] += [
        {"id": ocid("compartment", "other"), "name": "team-1", "lifecycleState": "ACTIVE"}
    ]
    chosen = settings("tenancy: {compartment: team-1}")
    with pytest.raises(UsageError, match=r"tenancy.compartment: 2 .*: ocid1.*team-1, ocid1.*other"):
        resolve_compartment(chosen, connect(chosen))


def test_no_secret_is_in_an_error_or_a_repr(
    tenancy: FakeTenancy, settings: Make, project: Path, keys: ApiKey, capfd: pytest.CaptureFixture[str]
) -> None:
    phrase = "hush-ä-$HOME"
    keys.write_config(project.parent / "home", phrase=phrase, log_requests="true")
    api = connect(settings())
    tenancy.fail("/tenancies", 403, "NotAuthorized")
    with pytest.raises(UsageError) as raised:
        api.get(*REQUEST, api.client(IdentityClient).get_tenancy, TENANCY)
    shown = capfd.readouterr()
    texts = [str(raised.value), repr(raised.value), repr(api), repr(api.credentials), *shown]
    for secret in (phrase, "PRIVATE KEY", keys.pem().decode().splitlines()[3], "signature="):
        assert not [text for text in texts if secret in text]


@pytest.mark.parametrize("verb", ["show", "check"])
def test_without_the_sdk_one_line_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, context: Callable[..., Context], verb: str
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "oci"]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in [name for name in sys.modules if name.startswith("tasks.oci.") and not name.endswith("verbs")]:
        monkeypatch.delitem(sys.modules, name)
    if verb == "check":
        run_command = functools.partial(doctor.login, CheckContext(load(context())))
    else:
        run_command = functools.partial(commands.show, context())
    with pytest.raises(UsageError, match=r"oci.*; type: make sdk"):
        run_command()
