"""Tests of resolving the cluster, its credentials, and a server that is not Kubernetes: each error is one line."""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from kubernetes.client.exceptions import ApiException

from remote.cluster import credential_cache, namespace_client
from remote.cluster.api_connection import connect
from remote.cluster.kubeconfig import Target, resolve
from remote.cluster.namespace_client import Cluster
from remote.hosts import local_program
from remote.hosts.pods.kubectl import Misconfigured, Unreachable
from remote.providers import PROVIDERS
from tests.support.hosts.rank_pids import alive
from tests.support.machines.http_stubs import StubHandler, StubServer


def kubeconfig(path: Path, *names: str, current: str | None = None, user: dict[str, Any] | None = None) -> Path:
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": f"c-{name}", "cluster": {"server": f"https://{name}:6443"}} for name in names],
                "users": [{"name": f"u-{name}", "user": user or {"token": "t"}} for name in names],
                "contexts": [{"name": n, "context": {"cluster": f"c-{n}", "user": f"u-{n}"}} for n in names],
                **({"current-context": current} if current else {}),
            }
        )
    )
    return path


def target(folder: Path, user: dict[str, Any] | None = None, **cluster: Any) -> Target:
    """Resolve a kubeconfig of one context with this user and these fields of its cluster."""
    path = kubeconfig(folder / "k", "a", current="a", user=user)
    document = json.loads(path.read_text())
    document["clusters"][0]["cluster"] |= cluster
    path.write_text(json.dumps(document))
    return resolve(kubeconfig=str(path), context=None, namespace="n")


def from_program(*command: str) -> dict[str, Any]:
    """Make a user whose credentials come from a program."""
    program, *arguments = command
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": program, "args": arguments}}


def resolve_error(**arguments: Any) -> str:
    with pytest.raises(Misconfigured) as caught:
        resolve(**{"kubeconfig": None, "context": None, "namespace": "n", **arguments})
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_current_context_is_the_default(tmp_path: Path) -> None:
    path = str(kubeconfig(tmp_path / "k", "dev", "prod", current="dev"))
    target = resolve(kubeconfig=path, context=None, namespace="n")
    assert (target.context, target.server) == ("dev", "https://dev:6443")
    assert str(target) == "context dev (cluster c-dev at https://dev:6443, user u-dev), namespace n"
    assert resolve(kubeconfig=path, context="prod", namespace="n").server == "https://prod:6443"


def test_a_missing_context_is_reported_with_the_existing_ones(tmp_path: Path) -> None:
    path = str(kubeconfig(tmp_path / "k", "dev", "prod", current="dev"))
    error = resolve_error(kubeconfig=path, context="stage")
    assert all(token in error for token in (f"kubeconfig {path}: ", "'stage'", "dev, prod", "; set cluster.context"))
    assert "; set cluster.context" in resolve_error(kubeconfig=str(kubeconfig(tmp_path / "l", "dev")))


@pytest.mark.parametrize(
    ("text", "token"),
    [
        (None, ": not found; set cluster.kubeconfig"),
        ("a: [", "yaml: line 1"),
        ("[" * 20_000, "; fix the file"),
        ("just words", "; fix the file"),
        ("contexts: 5", "Config.contexts"),
        ("contexts: [{}]", "; set cluster.context"),
        ("# nothing here yet", ": no existing context is current, "),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_one_line(text: str | None, token: str, tmp_path: Path) -> None:
    path = tmp_path / "k"
    if text is not None:
        path.write_text(text)
    assert token in resolve_error(kubeconfig=str(path))
    assert text is not None or "`inv tenancy" in resolve_error(kubeconfig=str(path), provider=PROVIDERS["oci"])


def test_a_context_without_a_cluster_is_one_line(tmp_path: Path) -> None:
    document = json.loads(kubeconfig(tmp_path / "k", "a", current="a").read_text())
    del document["contexts"][0]["context"]["cluster"]
    (tmp_path / "k").write_text(json.dumps(document))
    with pytest.raises(Misconfigured, match=r"clusters .*; fix the kubeconfig"):
        connect(resolve(kubeconfig=str(tmp_path / "k"), context=None, namespace="n"))


def test_paths_that_kubectl_takes_from_the_files_folder_are_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = target(tmp_path, {"tokenFile": "token", **from_program("./plugin")}).user_config
    assert (user["tokenFile"], user["exec"]["command"]) == (str(tmp_path / "token"), str(tmp_path / "plugin"))
    (tmp_path / "other").mkdir()
    kubeconfig(tmp_path / "other/k", "b")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'k'}:{tmp_path / 'other/k'}")
    assert "; write an absolute path" in resolve_error()


TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJtZSJ9.c2ln"
START = "sleep 600 & echo $! $$ > numbers.new; mv numbers.new numbers;"


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (f"echo 'token {TOKEN} is not valid' >&2; exit 3", r"ended with exit 3: token \*\*\* is not valid"),
        ("echo 7", "did not print a credential"),
        ("""echo '{"status": {}}'""", "did not print a credential"),
        (f"{START} wait", "timed out after 1 s; run it by hand"),
        (f"{START} yes", " 1 MiB"),
    ],
    ids=["fails", "prints a number", "prints none", "hangs", "prints without end"],
)
def test_a_credential_program_that_gives_none_is_one_line_and_is_ended(
    script: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local_program, "MAX_OUTPUT_BYTES", 1 << 20)
    from_shell = target(tmp_path, from_program("/bin/sh", "-c", script))
    monkeypatch.setattr(credential_cache, "CREDENTIAL_TIMEOUT_SEC", 1.0)
    with pytest.raises(Misconfigured, match=f"^context a: .*credential program /bin/sh.*{problem}"):
        connect(from_shell)
    numbers = [int(word) for word in Path("numbers").read_text().split()] if START in script else []
    deadline = time.monotonic() + 60
    while alive(numbers) and time.monotonic() < deadline:  # until their new parent reaps them
        time.sleep(0.01)
    assert alive(numbers) == []


def test_a_program_may_answer_with_a_certificate_whose_key_is_in_a_folder_that_is_removed_after_a_kill(
    tmp_path: Path,
) -> None:
    status = json.dumps({"status": {"clientCertificateData": "a", "clientKeyData": "b"}})
    made = connect(target(tmp_path, from_program("/bin/echo", status))).configuration
    certificate, key = Path(str(made.cert_file)), Path(str(made.key_file))
    assert (certificate.read_text(), key.read_text(), key.stat().st_mode & 0o777) == ("a", "b", 0o600)
    assert key.parent.name.startswith("qlora-fleet-kubeconfig-"), "the next process removes leftovers of this prefix"


class Server(StubServer):
    """API server that returns `response` for everything and records the headers of the Python client's requests."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(_Handler)
        self.response, self.authorizations = (status, body), list[str | None]()


class _Handler(StubHandler):
    server: Server

    def do_GET(self) -> None:
        if self.headers["User-Agent"].startswith("OpenAPI-Generator"):  # kubectl asks for the version where it likes
            self.server.authorizations.append(self.headers.get("Authorization"))
        self.reply(*self.server.response)


@contextlib.contextmanager
def open_cluster(
    folder: Path, user: dict[str, Any], status: int = 200, body: bytes = b"{}"
) -> Iterator[tuple[Server, Cluster]]:
    with Server(status, body) as server:
        yield server, Cluster(target(folder, user, server=f"http://{server.host}"))


def test_the_line_break_of_a_token_file_is_not_part_of_the_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hidden\n")
    with open_cluster(tmp_path, {"tokenFile": str(tmp_path / "token")}) as (server, cluster):
        assert cluster.namespace() == {}
    assert server.authorizations == ["Bearer hidden"]


def test_a_user_who_impersonates_another_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="context a: "), open_cluster(tmp_path, {"token": "t", "as": "me@x"}):
        pass


@pytest.mark.parametrize(
    ("server", "proxy"),
    [
        ("http://127.0.0.1:9", None),
        ("https://[::1]:9", None),
        ("https://localhost", None),
        ("https://a", "http://proxy:9"),
    ],
)
def test_this_machine_is_not_asked_through_a_proxy(
    server: str, proxy: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://proxy:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert connect(target(tmp_path, server=server)).configuration.proxy == proxy


def test_a_server_of_another_authority_is_one_line_that_no_retry_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ApiException(0, "SSLError\n[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed (_ssl.c:1006)")
    cluster = Cluster(target(tmp_path))
    monkeypatch.setattr(cluster._client, "call_api", mock.Mock(side_effect=error))
    with pytest.raises(Misconfigured, match=r"^https://a:6443: .*; .*certificate authority"):
        cluster.nodes()


def test_a_server_whose_certificate_is_not_verified_is_named_once(tmp_path: Path) -> None:
    unverified = target(tmp_path, **{"insecure-skip-tls-verify": True})
    assert "not verified" in str(unverified)
    assert connect(unverified).configuration.verify_ssl is False


@pytest.mark.parametrize(
    "user", [{"token": "hidden\nhidden"}, {"token": "h\u0456dden"}, {"username": "u", "password": ["hidden"]}]
)
def test_credentials_that_cannot_be_sent_are_named_and_not_shown(user: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(Misconfigured) as refused, open_cluster(tmp_path, user) as (_, cluster):
        cluster.namespace()
    assert "dden" not in str(refused.value)


@pytest.mark.parametrize("proxy", [7, "x", "http://[", "\x1b[31m"])
def test_an_invalid_proxy_is_one_line(proxy: object, tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"; fix the (file|kubeconfig)$"):
        connect(target(tmp_path, **{"proxy-url": proxy}))


@pytest.mark.parametrize("user", [{"token": "hidden"}, {"username": "u", "password": "hidden"}])
def test_credentials_do_not_travel_over_plain_http(user: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"^context a: .*u-a.*http://a:6443.*https://\.\.\."):
        connect(target(tmp_path, user, server="http://a:6443"))


@pytest.mark.parametrize("date", ["Mon, 20 Nov 99999999999999999999 00:00:00 GMT", "Mon, 20 Nov 10000 00:00:00 GMT"])
def test_an_invalid_date_is_not_parsed(date: str) -> None:
    assert namespace_client._parse_date(date) is None


@pytest.mark.parametrize(
    ("status", "body"),
    [
        *((200, b"[]"), (200, b'"no such page"'), (503, b"null"), (200, b"[" * 100_000), (200, b'{"items')),
        *((200, b'{"items": {"name": "a"}}'), (200, b'{"items": [null]}'), (200, b'{"items": [{"metadata": null}]}')),
        (200, b'{"items": [{"metadata": {"name": "a"}, "spec": null}]}'),
    ],
)
def test_json_that_is_not_from_kubernetes_is_an_unreachable_server(
    status: int, body: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespace_client, "_RETRY_PAUSES_SEC", ())
    with open_cluster(tmp_path, {"token": "t"}, status, body) as (_, cluster), pytest.raises(Unreachable):
        cluster.pods()
