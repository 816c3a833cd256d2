"""Tests of reading secrets from a private file or standard input."""

import contextlib
import io
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from remote.image.settings import HubSection, ImageSection, RegistrySection
from tasks.clients.secrets import check_hub_endpoint, checked_index_url, read_secret, registry_password
from tasks.errors import UsageError
from tasks.settings.layers import Settings


def password(root: Path, file: str | None = None) -> str:
    settings = Settings(root=root, registry=RegistrySection(password_file=file))
    return registry_password(settings, "ns/me", "fra.ocir.io", "inv push").reveal()


@pytest.mark.parametrize(("piped", "token"), [("token", "token"), ("a b \n", "a b ")])
def test_a_piped_password_is_one_line(piped: str, token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(piped))
    assert password(tmp_path) == token


@pytest.mark.parametrize("stdin", [io.StringIO("\n"), None])
def test_no_password_is_a_usage_error_with_an_example(
    stdin: io.StringIO | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", stdin)
    with pytest.raises(UsageError, match=r"ns/me at fra\.ocir\.io .*: inv push < "):
        password(tmp_path)


def test_a_password_file_comes_before_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("another\n"))
    private_file(tmp_path / "token", b"token\r\n")
    assert password(tmp_path, "token") == "token"


def private_file(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: (path.write_text("token"), path.chmod(0o640)), r"chmod 600 '/.*'$"),
        (lambda path: private_file(path, b" \n"), "empty"),
        (lambda path: path, "No such file or directory"),
        (lambda path: os.mkfifo(path, 0o600), "regular file"),
        (lambda path: path.mkdir(mode=0o700), "regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "regular file"),
        (lambda path: private_file(path, b"a" * (1 << 20 | 1)), "1,048,576 bytes"),
        (lambda path: private_file(path, b"\xff"), "UTF-8"),
    ],
)
def test_an_unusable_password_file_is_named(make: Callable[[Path], object], problem: str, tmp_path: Path) -> None:
    make(tmp_path / "my token")
    with pytest.raises(UsageError, match=rf"^registry\.password_file: .*my token: .*{problem}"):
        password(tmp_path, "my token")


@pytest.mark.parametrize("size", [6, 1 << 20 | 1])
def test_what_a_shell_pipes_is_read_up_to_the_same_size(size: int, tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    writer = threading.Thread(target=lambda: write_all(write_end, b"a" * size))
    writer.start()
    try:
        if size == 6:
            assert password(tmp_path, f"/dev/fd/{read_end}") == "a" * size
        else:
            with pytest.raises(UsageError, match="1,048,576 bytes"):
                password(tmp_path, f"/dev/fd/{read_end}")
    finally:
        os.close(read_end)
        writer.join()


def write_all(write_end: int, content: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), os.fdopen(write_end, "wb") as file:
        file.write(content)


@pytest.mark.parametrize("text", ["# of the server\nhidden\n", "hidden\x1b\n", "hidden \u0456\n"])
def test_what_goes_into_a_header_is_one_line_and_not_shown(text: str, tmp_path: Path) -> None:
    private_file(tmp_path / "key", text.encode())
    with pytest.raises(UsageError, match=r"--key-file: .*key: ") as refused:
        read_secret(Settings(root=tmp_path), "--key-file", "key", in_header=True)
    assert "hidden" not in str(refused.value)
    assert password(tmp_path, "key") == text.removesuffix("\n"), "a password is sent encoded, so it may be any text"


def test_a_login_in_the_address_of_an_index_is_refused_and_not_shown(tmp_path: Path) -> None:
    for address in ("https://me:hidden@index.example/simple", "https://hidden@index.example"):
        with pytest.raises(UsageError, match=r"image\.index_url: .*image\.pip_conf") as refused:
            checked_index_url(Settings(root=tmp_path, image=ImageSection(index_url=address)))
        assert "hidden" not in str(refused.value)
    for plain in (None, "https://index.example/@scope/simple"):
        assert checked_index_url(Settings(root=tmp_path, image=ImageSection(index_url=plain))) == plain


def test_a_token_for_the_hub_is_not_sent_over_plain_http_except_to_this_machine(tmp_path: Path) -> None:
    def settings(endpoint: str | None) -> Settings:
        return Settings(root=tmp_path, hub=HubSection(endpoint=endpoint, token_file="token"))

    for endpoint in ("HTTP://hub.example", "http://localhost@hub.example", "hub.example", "http://["):
        with pytest.raises(UsageError, match=rf"^hub\.endpoint: {re.escape(endpoint)}: .*https://.*hub\.token_file"):
            check_hub_endpoint(settings(endpoint))
    for other in (None, "https://hub.example", "http://localhost:8080", "http://[::1]:8080"):
        check_hub_endpoint(settings(other))
    check_hub_endpoint(Settings(root=tmp_path, hub=HubSection(endpoint="http://hub.example")))


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])  # in a UTF-8 locale, and with LANG=C
def test_a_piped_password_that_is_not_text_is_one_line_and_not_shown(
    errors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    piped = io.TextIOWrapper(io.BytesIO(b"hidden\xff\n"), encoding="utf-8", errors=errors)
    monkeypatch.setattr("sys.stdin", piped)
    with pytest.raises(UsageError, match=r"standard input .*UTF-8") as refused:
        password(tmp_path)
    assert "hidden" not in str(refused.value)


def test_a_piped_password_without_an_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    piped = io.StringIO("a" * (3 << 20))
    monkeypatch.setattr("sys.stdin", piped)
    with pytest.raises(UsageError, match=r"standard input .*1,048,576 characters"):
        password(tmp_path)
    assert piped.tell() <= (1 << 20) + 1


class Terminal(io.StringIO):
    """A terminal as standard input."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("answer", [EOFError(), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no text"), "a\udcff"])
def test_unusable_input_on_the_terminal_is_one_line(
    answer: Exception | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def getpass(_: str) -> str:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("getpass.getpass", getpass)
    with pytest.raises(UsageError, match=r"^auth token of ns/me at fra\.ocir\.io: ") as refused:
        password(tmp_path)
    assert str(refused.value).isprintable()
