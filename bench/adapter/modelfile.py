"""Modelfile for Ollama: the GGUF file, the chat template in Go's form, and what ends an answer.

Go's form is derived from what the Jinja template writes for probe conversations: the text around each role's content,
the beginning of the conversation and of an answer. Some families have the system's text within the first or the last
user's message. A form is kept only if it renders several conversations exactly as the Jinja template does. Otherwise
TEMPLATE is omitted, with a comment, since Ollama would prompt in another form.

Not covered: tools, images, thoughts.
"""

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from bench.adapter.gguf_tokenizer import adds_bos
from bench.data.inputs import InputError, system_messages
from bench.data.tokenizer import ChatTemplate, Messages

ROLES = ("system", "user", "assistant")
MISSING = "# No TEMPLATE: the chat template has no equivalent here; use llama.cpp, which reads it from the GGUF file.\n"
SYSTEM, USER, ASSISTANT = (f"@{role.upper()}@" for role in ROLES)  # contents of the probe conversation
PROBE = [
    {"role": "user", "content": USER},
    {"role": "assistant", "content": ASSISTANT},
    {"role": "user", "content": USER},
]
CONVERSATIONS = (
    ("user",),
    ("system", "user"),
    ("user", "assistant", "user"),
    ("system", "user", "assistant", "user", "assistant", "user"),
)


class SystemPosition(str, Enum):
    """Position of the system's text; its value is the condition of the user's message in Ollama's template.

    Ollama's messages begin with the system's, if there is one.
    """

    OWN_MESSAGE = ""
    FIRST_USER = "(eq $i 1)"
    LAST_USER = "(eq (len (slice $.Messages $i)) 1)"


@dataclass(frozen=True, kw_only=True)
class ChatForm:
    """Text of a chat: `start`, then each message between its role's two texts, then `answer`."""

    start: str
    around: Mapping[str, tuple[str, str]]
    answer: str
    system: SystemPosition = SystemPosition.OWN_MESSAGE

    @property
    def text(self) -> str:
        """All texts of the form."""
        return "".join([self.start, *(text for pair in self.around.values() for text in pair), self.answer])

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        system = ""
        if self.system and messages[0]["role"] == "system":
            system, messages = messages[0]["content"].join(self.around["system"]), messages[1:]
        users = [index for index, message in enumerate(messages) if message["role"] == "user"]
        chosen = users[0 if self.system is SystemPosition.FIRST_USER else -1]
        parts = [self.start]
        for index, message in enumerate(messages):
            before, after = self.around[message["role"]]
            parts += [before, system if index == chosen else "", message["content"], after]
        return "".join([*parts, self.answer])

    def go_template(self) -> str:
        """Return the template of Ollama that renders the same."""
        contents = dict.fromkeys(self.around, "{{ .Content }}")
        if self.system:
            system = "{{ $.System }}".join(self.around["system"])
            contents["user"] = f"{{{{ if and $.System {self.system.value} }}}}{system}{{{{ end }}}}{{{{ .Content }}}}"
            del contents["system"]
        branches = [
            f'if eq .Role "{role}" }}}}{self.around[role][0]}{content}{self.around[role][1]}'
            for role, content in contents.items()
        ]
        body = "{{ " + "{{ else ".join(branches)
        loop = "range $i, $_ := .Messages" if self.system else "range .Messages"
        return f"{self.start}{{{{ {loop} }}}}{body}{{{{ end }}}}{{{{ end }}}}{self.answer}"


def render_modelfile(tokenizer: Any, file_name: str, end_ids: Sequence[int], system: str | None) -> str:
    """Return the Modelfile's text. `system` is the system message of the training; None for the template's own."""
    lines = [f"FROM ./{file_name}\n"]
    form, own_system = derive_form(tokenizer)
    system = own_system if system is None else system
    is_possible = bool(system) or own_system is None  # Ollama sends no empty system message
    if form is None or not is_possible or not all(map(_is_plain, (form.go_template(), system or ""))):
        lines.append(MISSING)
    else:
        lines.append(f'TEMPLATE """{form.go_template()}"""\n')
        if system:
            lines.append(f'SYSTEM """{system}"""\n')
    for token in end_ids:
        text = tokenizer.convert_ids_to_tokens(token)
        if text and _is_plain(text) and '"' not in text and "\n" not in text:
            lines.append(f'PARAMETER stop "{text}"\n')
    return "".join(lines)


def _is_plain(text: str) -> bool:
    return '"""' not in text


def derive_form(tokenizer: Any) -> tuple[ChatForm | None, str | None]:
    """Derive the chat form of a tokenizer's template, without a BOS token that the tokenizer adds itself.

    Returns also the template's own system message. The form is None if it does not render as the template does.
    """
    if not isinstance(tokenizer.chat_template, str):
        return None, None
    template, bos = ChatTemplate(tokenizer), tokenizer.bos_token or ""

    def render(messages: Messages, *, prompt: bool = True) -> str:
        text = template.render("Modelfile", messages, prompt=prompt)
        return text.removeprefix(bos) if adds_bos(tokenizer) else text

    for start, cut in itertools.product(("", bos), (_cut, _cut_within_user)):
        with contextlib.suppress(InputError, ValueError):  # the template refuses a role; a probe's content is missing
            form, own_system = cut(render, start)
            if _renders_alike(form, own_system, render) and "{{" not in form.text:
                return form, own_system
    return None, None


def _renders_alike(form: ChatForm, own_system: str | None, render: Callable[..., str]) -> bool:
    for roles in CONVERSATIONS:
        messages = [{"role": role, "content": f"{role} {index}"} for index, role in enumerate(roles)]
        has_own = own_system is not None and roles[0] != "system"
        if form.render([*system_messages(own_system if has_own else None), *messages]) != render(messages):
            return False
    return True


def _cut(render: Callable[..., str], start: str) -> tuple[ChatForm, str | None]:
    """Cut the texts of a form out of probe conversations. Raises ValueError if a probe's content is missing."""
    plain = render(PROBE, prompt=False)
    answer = render(PROBE).removeprefix(plain)
    chat = render([*system_messages(SYSTEM), *PROBE], prompt=False).removeprefix(start)
    head, middle, after_user = chat.split(USER)
    before_system, after_system = head.split(SYSTEM)
    after_first, after_assistant = middle.split(ASSISTANT)
    # Cut what ends a message first: both texts may continue alike behind it.
    system_end, assistant_end = (len(_common_prefix(text, after_user)) for text in (after_system, after_assistant))
    before_user = _common_prefix(after_system[system_end:][::-1], after_assistant[assistant_end:][::-1])[::-1]
    around = {
        "system": (before_system, after_system.removesuffix(before_user)),
        "user": (before_user, after_user),
        "assistant": (after_first.removeprefix(after_user), after_assistant.removesuffix(before_user)),
    }
    begin = plain.removeprefix(start).split(USER)[0].removesuffix(before_user)
    own_system = begin.removeprefix(before_system).removesuffix(around["system"][1]) if begin else None
    return ChatForm(start=start, around=around, answer=answer), own_system


def _cut_within_user(render: Callable[..., str], start: str) -> tuple[ChatForm, None]:
    """Cut the texts of a form whose system's text is within a user's message. Raises ValueError like `_cut`."""
    plain = render(PROBE, prompt=False)
    before_user, middle, after_user = plain.removeprefix(start).split(USER)
    after_first, after_assistant = middle.split(ASSISTANT)
    first, last, _ = render([*system_messages(SYSTEM), *PROBE], prompt=False).removeprefix(start).split(USER)
    position = SystemPosition.FIRST_USER if SYSTEM in first else SystemPosition.LAST_USER
    part = first.removeprefix(before_user) if position is SystemPosition.FIRST_USER else last.removeprefix(middle)
    before_system, after_system = part.split(SYSTEM)
    around = {
        "system": (before_system, after_system),
        "user": (before_user, after_user),
        "assistant": (after_first.removeprefix(after_user), after_assistant.removesuffix(before_user)),
    }
    return ChatForm(start=start, around=around, answer=render(PROBE).removeprefix(plain), system=position), None


def _common_prefix(first: str, second: str) -> str:
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    return "".join(letter for letter, _ in pairs)
