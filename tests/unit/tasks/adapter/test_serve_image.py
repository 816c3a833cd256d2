"""Tests of the check of a server's image: what a vLLM of each version needs for an NF4 base."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from remote.cluster.manifests import Image
from remote.cluster.settings import ClusterSection
from remote.hosts.pods.kubectl import Forbidden
from remote.providers import GENERIC
from remote.serving import ServerSoftware
from tasks.adapter import serve
from tasks.adapter.serve import NF4Check, require_nf4
from tasks.clients.pod_check import pod_manifest
from tasks.clients.target_cluster import place_pods
from tasks.errors import UsageError
from tests.support.cases import Case, load_cases

PLUGIN, BITSANDBYTES = "vllm-bnb-plugin", "bitsandbytes"


def software(vllm: str | None, *others: str) -> ServerSoftware:
    return ServerSoftware(
        vllm=vllm,
        plugin="0.0.3" if PLUGIN in others else None,
        bitsandbytes="0.50.2" if BITSANDBYTES in others else None,
    )


@pytest.mark.parametrize("case", load_cases(__file__, "server_software.yaml"))
def test_what_is_missing_for_nf4_follows_from_the_release(case: Case) -> None:
    missing = software(case["vllm"], *case["installed"]).missing_for_nf4
    assert missing == (None if case["missing"] is None else tuple(case["missing"]))


@pytest.mark.parametrize("text", ['{"vllm": 1}', '{"vllm": "\\u001b[2J"}'])
def test_other_versions_than_text_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="versions as text"):
        ServerSoftware.parse(text)


def test_warnings_before_the_versions_are_skipped() -> None:
    line = json.dumps({"vllm": "0.32.0", PLUGIN: None, BITSANDBYTES: "0.50.2"})
    assert ServerSoftware.parse(f"a warning\n{line}\n") == software("0.32.0", BITSANDBYTES)


def test_a_server_that_cannot_load_nf4_is_refused_with_the_commands_that_work() -> None:
    text = json.dumps({"vllm": "0.32.0", PLUGIN: None, BITSANDBYTES: "0.50.2"})
    with pytest.raises(UsageError) as refusal:
        require_nf4(text, "host/image@sha256:ab", "inv serve --merged")
    assert refusal.value.exit_code == 2
    assert "`inv serve --merged`" in refusal.value.remedy
    assert f"pip install --no-deps {PLUGIN}`" in refusal.value.remedy


@pytest.mark.parametrize("text", ["", "Traceback", json.dumps({"vllm": "0.1.dev3"})])
def test_an_unknown_version_is_not_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    require_nf4(text, "host/image@sha256:ab", "inv serve --merged")
    assert capsys.readouterr().out.startswith("! host/image@sha256:ab: ")


def fake_cluster(*, has_namespace: bool = True, has_secret: bool = True) -> Any:
    namespace = {} if has_namespace else None
    return SimpleNamespace(namespace=lambda: namespace, has_secret=lambda _name: has_secret, provider=GENERIC)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Record each run of the check's pod, whose image has vLLM 0.32 without the plugin."""
    recorded: list[object] = []
    text = json.dumps({"vllm": "0.32.0", PLUGIN: None, BITSANDBYTES: "0.50.2"})
    monkeypatch.setattr(serve, "run_pod_check", lambda *arguments: recorded.append(arguments[-1]) or text)
    return recorded


def nf4_check() -> NF4Check:
    image = Image(repository="host/vllm", digest=f"sha256:{'ab' * 32}")
    return NF4Check(ClusterSection(), image, "inv serve --merged", "inv serve")


def test_the_check_waits_for_namespace_and_pull_secret(runs: list[object]) -> None:
    check = nf4_check()
    check.run_early(fake_cluster(has_namespace=False))
    check.run_early(fake_cluster(has_secret=False))
    assert not runs
    with pytest.raises(UsageError):
        check.run(fake_cluster())
    assert len(runs) == 1


def test_the_check_is_made_once(runs: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "require_nf4", lambda *_: None)
    check = nf4_check()
    check.run_early(fake_cluster())
    check.run(fake_cluster())
    assert len(runs) == 1


def test_without_the_right_to_start_pods_the_server_is_deployed_unchecked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise Forbidden("user may not create pods")

    monkeypatch.setattr(serve, "run_pod_check", refuse)
    nf4_check().run(fake_cluster())
    assert "user may not create pods" in capsys.readouterr().out


def test_a_checking_pod_takes_no_gpu() -> None:
    section = ClusterSection(namespace="team", instance_type="GPU", cpu="100m", cpu_limit="1", ready_timeout_sec=60.0)
    pod = pod_manifest("i", ["true"], place_pods(section, GENERIC), has_secret=True)
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "1", "memory": "256Mi"}
    assert container["command"] == ["true"], "the image's entrypoint is replaced"
    assert pod["spec"]["activeDeadlineSeconds"] == 180
