"""Commands as values: quoting for a real shell, and secrets that appear nowhere."""

import copy
import json
import pickle
import shlex
import traceback

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from remote.hosts.command import MASK, Command, Secret, mask, mask_opaque
from remote.hosts.host_protocol import CommandFailed, Completed
from remote.jobs.job import JobSpec


@pytest.mark.parametrize(
    "arguments",
    [
        {"argv": ()},
        {"argv": ("",)},
        {"argv": ("a\0b",)},
        {"argv": ("a",), "environment": {"A": "\0"}},
        {"argv": ("a",), "environment": {"": "x"}},
        {"argv": ("a",), "environment": {"A=B": "x"}},
        {"argv": ("a",), "folder": "\0"},
    ],
)
def test_a_command_that_no_shell_could_run_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"argument|NUL|environment variable"):
        Command(**arguments)  # type: ignore[arg-type]


# --- secrets ----------------------------------------------------------------------------------------------------------

TOKEN = 's3cr3t token\'s "value"'


def test_a_secret_shows_nowhere() -> None:
    secret = Secret(TOKEN)
    command = Command(argv=("docker", "login"), secrets=(secret,))
    texts = [str(secret), repr(secret), f"{secret}", f"{secret:>40}", f"{secret!r}", "%s" % secret, repr([secret])]  # noqa: UP031
    texts += [repr(command), str(command), command.render(), repr({"password": secret})]
    assert not any(TOKEN in text or TOKEN.replace('"', '\\"') in text for text in texts)
    assert str(secret) == MASK
    assert secret.reveal() == TOKEN


@pytest.mark.parametrize("write", [pickle.dumps, copy.deepcopy, copy.copy, json.dumps, vars])
def test_a_secret_cannot_be_serialized(write: object) -> None:
    with pytest.raises(TypeError) as error:
        write(Secret(TOKEN))  # type: ignore[operator]
    assert TOKEN not in str(error.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"argv": ("login", TOKEN)},
        {"argv": ("login", f"--password={TOKEN}")},
        {"argv": ("login",), "environment": {"TOKEN": TOKEN}},
        {"argv": ("login",), "environment": {f"A{TOKEN}": "1"}},
        {"argv": ("login",), "folder": f"/home/{TOKEN}"},
    ],
)
def test_a_command_with_a_secret_in_a_process_listing_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="argv, environment or folder") as error:
        Command(**arguments, secrets=(Secret(TOKEN),))  # type: ignore[arg-type]
    assert TOKEN not in str(error.value)
    with pytest.raises(ValueError, match="secrets"):  # a job's command is on disk
        JobSpec(command=Command(argv=("login",), secrets=(Secret(TOKEN),)), deadline_sec=1.0)


@settings(max_examples=50)
@given(secret=st.text(st.characters(categories=["Lu", "Zs", "Po"]), min_size=1, max_size=20))
def test_a_secret_is_masked_in_its_plain_and_in_its_quoted_form(secret: str) -> None:
    assume(not set(secret) <= set("*'"))
    masked = mask(f"plain {secret} and quoted {shlex.quote(secret)} end", [Secret(secret)])
    assert masked.replace(MASK, "") == "plain  and quoted  end" or secret in "plain  and quoted  end"


@pytest.mark.parametrize(("word", "is_masked"), [
    ("eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJtZSJ9.c2ln", True), ("k8s-aws-v1.aHR0cHM6Ly9zdHMuYW1hem9uYXdzLmNvbS8", True),
    ("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", True), ("a" * 16 + "0123456789abcdef", True),
    ("iaas.eu-frankfurt-1.oraclecloud.com", False), ("/home/me/.oci/sessions/default/token", False),
    ("ocid1.cluster.oc1.eu-frankfurt-1.zzzzzzzzz3tgnjyw", False), ("ServiceError", False),
])  # fmt: skip
def test_what_looks_like_a_token_is_masked(word: str, is_masked: bool) -> None:
    assert mask_opaque(f"token={word}; expired") == (f"{MASK}; expired" if is_masked else f"token={word}; expired")


def test_masking_takes_the_quoted_form_whole_and_the_longest_secret_first() -> None:
    assert mask("login 'my secret' now", [Secret("my secret")]) == "login *** now"
    assert mask("""login 'it'"'"'s' now""", [Secret("it's")]) == "login *** now"
    assert mask("pass password", [Secret("pass"), Secret("password")]) == "*** ***"


def test_an_error_made_from_a_command_is_masked() -> None:
    command = Command(argv=("docker", "login"), secrets=(Secret(TOKEN),))
    completed = Completed(exit_code=1, stderr=f"line one\nunauthorized: {TOKEN}\n".encode())
    error = CommandFailed("build-vm", command, completed)
    assert str(error) == "build-vm: exit 1: docker login\nline one\nunauthorized: ***"
    assert TOKEN not in "".join(traceback.format_exception(error))


def test_an_error_shows_the_last_lines_of_either_stream_and_shortened_arguments() -> None:
    command = Command(argv=("python3", "-c", "\nimport os\nprint(1)\n", "x" * 200, "y" * 201))
    completed = Completed(exit_code=2, stdout="\n".join(f"line {number}" for number in range(9)).encode())
    assert str(CommandFailed("h", command, completed)).splitlines() == [
        f"h: exit 2: python3 -c 'import os…' {'x' * 200} '{'y' * 40}…'",
        *[f"line {number}" for number in range(4, 9)],
    ]
    assert "print(1)" in command.render()
