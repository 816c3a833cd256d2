"""Messages for a host key that is not in known_hosts."""

import base64

from remote.hosts.ssh.known_hosts import KnownKey, explain_refusal, fingerprint

KEY, OTHER = b"\0\0\0\x0bssh-ed25519" + b"k" * 36, b"\0\0\0\x0bssh-ed25519" + b"o" * 36
TEXT = base64.b64encode(KEY).decode()


def test_the_message_for_an_unknown_key_ends_with_the_command_that_accepts_it() -> None:
    message = explain_refusal([], ["/home/me/my hosts"], "VM", 2222, "ssh-ed25519", KEY)
    assert f": ssh-ed25519 {fingerprint(KEY)}; " in message
    assert message.endswith(f": echo '[vm]:2222 ssh-ed25519 {TEXT}' >> '/home/me/my hosts'")


def test_the_message_for_a_changed_key_names_every_line_of_the_old_one() -> None:
    known = [KnownKey(file=file, line=line, kind="ssh-ed25519", blob=OTHER) for file, line in (("/a", 2), ("/b", 1))]
    message = explain_refusal(known, ["/a", "/b"], "vm", 22, "ssh-ed25519", KEY)
    for part in ("/a:2", "/b:1", fingerprint(OTHER), fingerprint(KEY)):
        assert part in message
    remove = "ssh-keygen -R vm -f /a && ssh-keygen -R vm -f /b"
    assert f"{remove} && echo 'vm ssh-ed25519 {TEXT}' >> /a" in message
