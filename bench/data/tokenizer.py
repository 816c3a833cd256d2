"""A model folder's tokenizer, chat template and control tokens, loaded without torch, which saves seconds."""

import contextlib
import functools
import importlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from bench.data.formats import THOUGHT_NAMES
from bench.data.inputs import InputError
from bench.data.model_folder import end_tokens, processor_template
from bench.data.tool_calls import map_strings, strings
from bench.records import Trial
from bench.torch_stack import set_environment

Messages: TypeAlias = Sequence[Mapping[str, Any]]
Tools: TypeAlias = Sequence[dict[str, Any]]
T = TypeVar("T")
PARALLELISM_VARIABLE = "TOKENIZERS_PARALLELISM"  # the library tokenizers reads it at each call
# Fixed date for templates that write the current one: the same data must give the same examples on every day.
TEMPLATE_DATE = datetime(2026, 1, 1, tzinfo=timezone.utc)
PROBE_THOUGHT = "probe_thought"
# Tokens of a thought are a part of the answer's text wherever they are typed.
THOUGHT_TOKENS = ("<think>", "</think>", "[THINK]", "[/THINK]")
# Unicode's private plane 16: a first character for each control token, own or typed, then FILL up to its length.
OWN, TYPED, FILL, LAST = 0x100000, 0x108000, "\U0010fffd", "\U0010ffff"
MAX_CONTROL_TOKENS = 0x7000
CONTROL_TOKEN = re.compile(r"<\|[^|<>{}'\"\s]+\|>")
TEMPLATE_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)


def load_tokenizer(folder: Path, chat_template: str | None = None) -> Any:
    """Load the tokenizer.json of a checked folder with its settings, and its chat template or another one's text.

    Its attribute `turn_ends` has the tokens at which the model ends an answer, from config.json. Raises InputError.
    """
    set_environment()
    from transformers import PreTrainedTokenizerFast

    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the library tokenizers has no class of its own, transformers reads keys unchecked
        raise InputError(f"{folder}: its tokenizer cannot be loaded: {' '.join(str(error).split())}") from error
    tokenizer.turn_ends = end_tokens(folder)
    tokenizer.chat_template = tokenizer.chat_template or processor_template(folder)
    if chat_template is not None:
        _check_template(tokenizer, chat_template)
        tokenizer.chat_template = chat_template
    return tokenizer


def load_trial_tokenizer(trial: Trial) -> Any:
    """Load the tokenizer of a trial's model, with the chat template of its data's options. Raises InputError."""
    return load_tokenizer(Path(trial.model), trial.reading.chat_template)


def _check_template(tokenizer: Any, text: str) -> None:
    """Check the syntax of train.chat_template, and that its control tokens are the model's. Raises InputError."""
    try:
        _compile_jinja(text)
    except Exception as error:  # errors of jinja and of its extensions
        line = getattr(error, "lineno", None)
        location = "" if line is None else f"line {line}: "
        raise InputError(
            f"train.chat_template: {location}not a Jinja template: {' '.join(str(error).split())}",
            remedy="correct the file",
        ) from error
    known = {token.content for token in tokenizer.added_tokens_decoder.values()}
    unknown = sorted(set(CONTROL_TOKEN.findall(TEMPLATE_COMMENT.sub("", text))) - known)
    if unknown:
        raise InputError(
            f"train.chat_template: writes {', '.join(unknown[:5])}, which the model's tokenizer does not have; new "
            "tokens are not trained",
            remedy="use a template with the model's own control tokens, or a model that has these",
        )


@contextlib.contextmanager
def use_all_cores() -> Iterator[None]:
    """Let tokenizers use every core of this process. Do not fork inside: the child would wait for missing threads."""
    before = os.environ.get(PARALLELISM_VARIABLE)
    os.environ[PARALLELISM_VARIABLE] = "true"
    try:
        yield
    finally:
        os.environ[PARALLELISM_VARIABLE] = before or "false"


class TemplateFault(InputError):
    """A fault of the model's template, not of a line of the data."""


class ChatTemplate:
    """The model's chat template: a third-party program in jinja's sandbox, which may raise anything.

    `apply_chat_template` prepares every possible template variable for each conversation, which takes longer than the
    template itself. So the template that transformers chooses and compiles is called directly.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._compiled = functools.cache(self._compile)

    def render(self, location: str, messages: Messages, *, prompt: bool = False, tools: Tools = ()) -> str:
        """Render a conversation; `location` is its file and line, for messages. Raises InputError."""
        try:
            template, variables = self._compiled(bool(tools))
            values = {"messages": messages, "add_generation_prompt": prompt, "tools": list(tools) or None}
            return "".join(template.root_render_func(template.new_context({**variables, **values}, shared=True)))
        except Exception as error:
            why = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"{location}: rejected by the model's chat template: {why}") from error

    @functools.cached_property
    def writes_think(self) -> bool:
        """Tell whether a thought is written after <think>; True for a template that does not write it."""
        messages = [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "A."}]
        messages[1] |= dict.fromkeys(THOUGHT_NAMES, PROBE_THOUGHT)
        with contextlib.suppress(InputError):  # the template may reject the probe
            before, thought, _ = self.render("", messages).partition(PROBE_THOUGHT)
            return not thought or "<think>" in before
        return True

    def _compile(self, has_tools: bool) -> tuple[Any, Mapping[str, Any]]:
        """Compile the template that transformers chooses with or without tools."""
        text = self._tokenizer.get_chat_template(tools=[] if has_tools else None)
        template = _compile_jinja(text)
        # Flatten the chain of dicts, slow to copy. transformers caches this template and renders with it.
        template.globals = {**template.globals, "strftime_now": TEMPLATE_DATE.strftime}
        variables = {**template.globals, "documents": None, **self._tokenizer.special_tokens_map}
        return template, variables


def _compile_jinja(text: str) -> Any:
    """Compile a chat template in the sandbox of transformers."""
    return importlib.import_module("transformers.utils.chat_template_utils")._compile_jinja_template(text)


class ControlTokens:
    """Control tokens of a tokenizer, which may be typed in a text, like `</s>` in a user's question.

    A tokenizer makes real control tokens of them: a user could end a turn or begin the assistant's. As text they are
    tokenized like any other characters, the way mistral-common does. The template's own control tokens stay: while the
    template renders, typed ones are replaced by characters for private use of the same length, so offsets stay valid.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = {token.content: (number, token) for number, token in tokenizer.added_tokens_decoder.items()}
        special = {content: token for content, token in added.items() if token[1].special and content}
        self._tokens = {content: special[content] for content in sorted(special)}
        if len(self._tokens) > MAX_CONTROL_TOKENS:
            raise InputError(
                f"tokenizer.json: more than {MAX_CONTROL_TOKENS} control tokens", remedy="check the model folder"
            )
        self._contents = list(self._tokens)
        self._indices = {content: index for index, content in enumerate(self._contents)}
        self._own = _one_of(self._contents)
        self._typed = _one_of(content for content in self._contents if content not in THOUGHT_TOKENS)
        self._hidden = re.compile(f"[{chr(TYPED)}-{chr(TYPED + MAX_CONTROL_TOKENS - 1)}]{FILL}*")
        self._copy: tuple[Any, dict[int, int]] | None = None

    def find(self, value: object) -> list[str]:
        """List the control tokens that are typed in a text, messages or tools, each once."""
        return sorted({token for text in strings(value) for token in self._typed.findall(text)})

    def hide(self, location: str, value: T) -> T:
        """Return messages or tools with typed control tokens replaced, for the template. Raises InputError."""
        if any(chr(OWN) <= character <= LAST for text in strings(value) for character in text):
            raise InputError(
                f"{location}: contains a control token and characters of Unicode's private plane 16",
                remedy="remove one of them",
            )

        return map_strings(lambda text: self._replace(self._typed, TYPED, text), value)

    def encode(self, texts: Sequence[str]) -> list[tuple[list[int], Any]]:
        """Tokenize rendered texts; return token ids and encoding of each. Typed control tokens become text."""
        tokenizer, own_ids = self._copy = self._copy or self._make_copy()
        own = [self._replace(self._own, OWN, text) for text in texts]
        shown = [self._hidden.sub(lambda match: self._contents[ord(match.group()[0]) - TYPED], text) for text in own]
        encodings = tokenizer.encode_batch(shown, add_special_tokens=False)
        return [([own_ids.get(token, token) for token in encoding.ids], encoding) for encoding in encodings]

    def _replace(self, pattern: re.Pattern[str], base: int, text: str) -> str:
        return pattern.sub(lambda match: self._replacement(base, match.group()), text)

    def _replacement(self, base: int, content: str) -> str:
        return chr(base + self._indices[content]) + FILL * (len(content) - 1)

    def _make_copy(self) -> tuple[Any, dict[int, int]]:
        """Return a tokenizer that reads control tokens as text and knows their replacements, and the real ids."""
        backend = self._tokenizer.backend_tokenizer
        copy = type(backend).from_str(backend.to_str())
        copy.no_truncation()
        copy.no_padding()
        copy.encode_special_tokens = True
        real_ids = {self._replacement(OWN, content): number for content, (number, _) in self._tokens.items()}
        flags = ("lstrip", "rstrip", "single_word")
        copy.add_tokens(
            [
                type(token)(replacement, normalized=False, **{flag: getattr(token, flag) for flag in flags})
                for replacement, (_, token) in zip(real_ids, self._tokens.values(), strict=True)
            ]
        )
        added = copy.get_added_tokens_decoder().items()
        return copy, {number: real_ids[token.content] for number, token in added if token.content in real_ids}


def _one_of(contents: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of these texts that prefers the longest; of nothing without any."""
    return re.compile("|".join(map(re.escape, sorted(contents, key=len, reverse=True))) or r"(?!)")
