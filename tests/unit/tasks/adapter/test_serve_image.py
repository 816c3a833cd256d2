"""Tests of the check of a server's image: what a vLLM of each version needs for an NF4 base."""

import json

import pytest

from remote.serving.software import ServerSoftware
from tasks.adapter.serve_image import require_nf4
from tasks.errors import UsageError

PLUGIN, BITSANDBYTES = "vllm-bnb-plugin", "bitsandbytes"


def software(vllm: str | None, *others: str) -> ServerSoftware:
    return ServerSoftware(
        vllm=vllm,
        plugin="0.0.3" if PLUGIN in others else None,
        bitsandbytes="0.50.2" if BITSANDBYTES in others else None,
    )


@pytest.mark.parametrize(
    ("installed", "missing"),
    [
        (software("0.32.0"), (PLUGIN, BITSANDBYTES)),
        (software("0.32.0", BITSANDBYTES), (PLUGIN,)),
        (software("0.32.0", PLUGIN), (BITSANDBYTES,)),
        (software("0.32.0+cu130", PLUGIN, BITSANDBYTES), ()),
        (software("0.28.0", BITSANDBYTES), (PLUGIN,)),
        (software("0.27.2rc0", BITSANDBYTES), (PLUGIN,)),
        (software("0.27.1", BITSANDBYTES), ()),
        (software("0.27.1.post1"), (BITSANDBYTES,)),
        (software("0.8.5", BITSANDBYTES), ()),
        (software("dev", BITSANDBYTES), None),
        (software(None, BITSANDBYTES), None),
    ],
)
def test_what_is_missing_for_nf4_follows_from_the_release(
    installed: ServerSoftware, missing: tuple[str, ...] | None
) -> None:
    assert installed.missing_for_nf4 == missing


@pytest.mark.parametrize(
    "text", ["", "sh: python3: not found", "[]", "null", '{"vllm": 1}', '{"vllm": "\\u001b[2J"}', "[" * 100_000]
)
def test_other_output_is_refused(text: str) -> None:
    with pytest.raises((ValueError, RecursionError)):
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
