"""Text of invoke.yaml, from the declarations of the settings."""

from collections.abc import Iterator

import yaml

from bench.records.validation import AUTO, Setting, settings_of
from tasks.settings.sections import flatten
from tasks.settings.sources import Keys

HEADER = """\
# Every setting of qlora-fleet with its default. As shipped, everything runs on this one machine, without a GPU.
#
# To change something, edit this file, or leave it as it is and put the same keys into ~/.invoke.yaml, into a file
# given with `inv -f FILE ...`, or into the environment: fleet.size is INVOKE_FLEET_SIZE. Later ones win: this file,
# ~/.invoke.yaml, environment, -f. A key that is not below is an error. No secret belongs in any of them.
"""


def render(kind: type) -> str:
    """Return the file with the settings of this class of sections."""
    settings, sections = flatten(kind)
    return "\n".join([HEADER.rstrip(), *_lines((), settings, sections)]) + "\n"


def _lines(parents: Keys, settings: dict[Keys, Setting], sections: dict[Keys, type]) -> Iterator[str]:
    indent = "  " * len(parents)
    for declared in settings_of(sections[parents]).values():
        default = declared.default if declared.usual is None else AUTO
        value = yaml.safe_dump(default, default_flow_style=True, width=1000).splitlines()[0]
        yield f"{indent}{declared.name}: {value} # {declared.comment}"
    for keys, section in sections.items():
        if keys[:-1] == parents and keys:
            yield from ("",) if not parents else ()
            yield f"{indent}{keys[-1]}: # {(section.__doc__ or '').rstrip('.')}"
            yield from _lines(keys, settings, sections)
