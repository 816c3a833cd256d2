"""The real SDK against a stand-in that verifies each signature: what it sends, and what its errors become."""

import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("oci", reason="Oracle's SDK is not installed: `make sdk` installs it")

from invoke import Config, Context
from oci.container_engine import ContainerEngineClient
from oci.identity import IdentityClient

from tasks.doctor.checks import oci as doctor
from tasks.doctor.context import CheckContext
from tasks.doctor.result import fine
from tasks.errors import ConfirmationRequired, RetryableError, TaskFailed, UsageError
from tasks.oci import commands
from tasks.oci.access import clients
from tasks.oci.access.clients import access, compartment_of, namespace_of
from tasks.oci.access.errors import ServiceCall
from tasks.settings.load import Settings, load
from tests.support.machines.fake_tenancy import TENANCY, FakeTenancy, Keys, ocid
from tests.support.machines.http_stubs import Answering, Serving

pytestmark = pytest.mark.usefixtures("tenancy")
Make = Callable[..., Settings]
ASKED = ServiceCall(doing="listing clusters", right="read clusters")


def listed(settings: Settings) -> list[dict[str, object]]:
    entry = access(settings)
    return entry.all(ASKED, entry.client(ContainerEngineClient).list_clusters, TENANCY)


def test_credentials_that_are_accepted_say_where(tenancy: FakeTenancy, settings: Make) -> None:
    said = doctor.login(CheckContext(settings(), Config()))
    assert said == fine("profile DEFAULT of ~/.oci/config: accepted in eu-frankfurt-1, namespace axns")
    assert tenancy.asked("GET /n") == 1


def test_a_list_is_read_to_its_last_page(tenancy: FakeTenancy, settings: Make) -> None:
    tenancy.world.lists["/clusters"] = [{"id": ocid("cluster", str(n))} for n in range(7)]
    assert len(listed(settings())) == 7
    assert tenancy.asked("GET .*/clusters") == 4


def test_a_list_without_an_end_is_given_up(
    tenancy: FakeTenancy, settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "MOST_PAGES", 2)
    tenancy.world.lists["/clusters"] = [{"id": ocid("cluster", str(n))} for n in range(9)]
    with pytest.raises(RetryableError, match="has no end"):
        listed(settings())


@pytest.mark.parametrize(
    ("status", "times", "cut"), [(429, 2, False), (500, 2, False), (503, 2, False), (200, 1, True)]
)
def test_what_may_pass_is_asked_again(tenancy: FakeTenancy, settings: Make, status: int, times: int, cut: bool) -> None:
    tenancy.fail("/clusters", status, "Busy", times=times, cut=cut)
    assert len(listed(settings())) == 1
    assert tenancy.asked("/clusters") == times + 1


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ((429, "TooManyRequests"), RetryableError, "asked several times; the same again later (request REQUEST/7)"),
        ((500, "InternalServerError"), RetryableError, "listing clusters: 500 InternalServerError"),
        ((403, "NotAuthorized"), UsageError, "Allow group GROUP to read clusters in tenancy"),
        ((404, "NotAuthorizedOrNotFound"), UsageError, "not there, or this user may not see it: the policy"),
        ((409, "IncorrectState"), ConfirmationRequired, "somebody changes it too"),
        ((400, "LimitExceeded"), UsageError, "use less, or ask for more"),
        ((400, "QuotaExceeded"), UsageError, "use less, or ask for more"),
        ((400, "InvalidParameter"), UsageError, "400 InvalidParameter: refused (request REQUEST/7)"),
    ],
)
def test_an_error_of_the_api_is_one_line_with_what_to_do(
    tenancy: FakeTenancy, settings: Make, fault: tuple[int, str], kind: type[TaskFailed], words: str
) -> None:
    tenancy.fail("/clusters", *fault)
    with pytest.raises(kind, match=re.escape(words)) as raised:
        listed(settings())
    assert "REQUEST/7" in str(raised.value)


def test_a_page_of_some_proxy_is_not_taken_for_an_answer(tenancy: FakeTenancy, settings: Make) -> None:
    tenancy.fail("/clusters", 200, html=True)
    with pytest.raises(RetryableError, match="not the API's answer: '<html>"):
        listed(settings())


class Gateway(Answering):
    """What stands before the API and answers in its place, in its own form."""

    def do_GET(self) -> None:
        if "/clusters" in self.path:
            self.reply(403, b'{"code": 7, "message": "blocked"}', {"Content-Type": "application/json"})
        else:
            self.reply(200, "<html>Größe</html>".encode("latin-1"), {"Content-Type": "text/html"})


def test_a_gateways_answer_may_have_another_encoding_and_a_number_for_its_code(
    settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Serving(Gateway) as gateway:
        monkeypatch.setattr(clients, "ENDPOINT", f"http://{gateway.host}")
        with pytest.raises(UsageError, match="listing clusters: 403 7: blocked"):
            listed(settings())
        with pytest.raises(RetryableError, match=r"no whole answer .*'utf-8' codec .*check network and proxy"):
            namespace_of(access(settings()))


def test_nobody_who_answers_is_something_that_may_pass(settings: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(RetryableError, match="listing clusters: no whole answer from eu-frankfurt-1"):
        listed(settings())


def test_a_key_that_is_not_uploaded_any_more_is_named(tenancy: FakeTenancy, settings: Make) -> None:
    tenancy.key_id = "another"
    with pytest.raises(UsageError, match=r"profile DEFAULT of ~/.oci/config is not accepted .* still uploaded"):
        namespace_of(access(settings()))
    assert tenancy.asked("GET /n") == 1  # a wrong key is not asked with again


@pytest.mark.parametrize(("skew_sec", "words"), [(1020.0, "17 min behind"), (-600.0, "10 min ahead")])
def test_a_clock_that_is_wrong_is_named(tenancy: FakeTenancy, settings: Make, skew_sec: float, words: str) -> None:
    tenancy.skew_sec = skew_sec
    with pytest.raises(UsageError, match=f"this machine's clock is {words}"):
        namespace_of(access(settings()))


@pytest.mark.parametrize("phrase", ["plain", "p äss'\"$(rm)\\n;=%s 🔑", "#hash"])
def test_a_key_with_a_pass_phrase_of_any_letters_signs(settings: Make, project: Path, keys: Keys, phrase: str) -> None:
    keys.config_into(project.parent / "home", phrase=phrase)
    assert namespace_of(access(settings())) == "axns"


def test_a_session_signs_with_its_token(tenancy: FakeTenancy, settings: Make, project: Path, keys: Keys) -> None:
    token = project.parent / "home" / ".oci" / "token"
    token.write_text("e30.eyJleHAiOiA0MTAyNDQ0ODAwfQ.x")  # {"exp": 4102444800}
    token.chmod(0o600)
    keys.config_into(project.parent / "home", security_token_file=str(token))
    tenancy.key_id = f"ST${token.read_text()}"
    assert namespace_of(access(settings())) == "axns"


def test_a_compartment_is_found_by_its_name(settings: Make) -> None:
    chosen = settings("tenancy: {compartment: team-4}")
    assert compartment_of(chosen, access(chosen)) == (ocid("compartment", "team-4"), "team-4")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("compartment: nobody", "no compartment nobody; there are team-0, team-1"),
        (f"compartment: {ocid('cluster', 'x')}", "expected an OCID like ocid1.compartment.oc1..., found"),
        (f"compartment: {ocid('compartment', 'x')}", "no such compartment, or not for this user"),
        ("region: eu-frankfurt-7", "no such region; did you mean eu-frankfurt-2"),
        ("region: Frankfurt", "expected a region like eu-frankfurt-1"),
        ("profile: WORK", "no profile WORK; there are DEFAULT"),
        ("config_file: nowhere", "not there; `oci setup config`"),
    ],
)
def test_a_wrong_setting_is_one_line(settings: Make, text: str, words: str) -> None:
    chosen = settings(f"tenancy: {{{text}}}")
    with pytest.raises(UsageError, match=re.escape(words)):
        compartment_of(chosen, access(chosen))


def test_two_compartments_of_one_name_are_both_named(tenancy: FakeTenancy, settings: Make) -> None:
    tenancy.world.lists["/compartments"] += [{"id": ocid("compartment", "other"), "name": "team-1"}]
    chosen = settings("tenancy: {compartment: team-1}")
    with pytest.raises(UsageError, match=r"2 compartments are called team-1: ocid1.*team-1, ocid1.*other"):
        compartment_of(chosen, access(chosen))


def test_no_secret_is_in_an_error_or_a_repr(
    tenancy: FakeTenancy, settings: Make, project: Path, keys: Keys, capfd: pytest.CaptureFixture[str]
) -> None:
    phrase = "hush-ä-$HOME"
    keys.config_into(project.parent / "home", phrase=phrase, log_requests="true")
    entry = access(settings())
    tenancy.fail("/tenancies", 403, "NotAuthorized")
    with pytest.raises(UsageError) as raised:
        entry.one(ASKED, entry.client(IdentityClient).get_tenancy, TENANCY)
    shown = capfd.readouterr()
    texts = [str(raised.value), repr(raised.value), repr(entry), repr(clients.profile_of(settings())), *shown]
    for secret in (phrase, "PRIVATE KEY", keys.pem().decode().splitlines()[3], "signature="):
        assert not [text for text in texts if secret in text]


@pytest.mark.parametrize("verb", ["show", "repository", "kubeconfig", "nodes", "check"])
def test_without_the_sdk_one_line_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, context: Callable[..., Context], verb: str
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "oci"]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in [name for name in sys.modules if name.startswith("tasks.oci.") and not name.endswith("verbs")]:
        monkeypatch.delitem(sys.modules, name)
    if verb == "check":
        ask = functools.partial(doctor.login, CheckContext(load(context()), Config()))
    else:
        ask = functools.partial(getattr(commands, verb), context())
    with pytest.raises(UsageError, match=r"need Oracle's SDK \(oci.* is missing\); type: pip install '\.\[tenancy\]'"):
        ask()
