"""Links, files, modules and tests that documents, strings and comments name exist; linters do not check these."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tasks.settings.sections import SETTINGS
from tests import step_figure
from tests.support.documents import DOCUMENTS
from tests.support.paths import ROOT

PACKAGES = ("tasks", "remote", "bench", "reports")
DOCS = ROOT / "docs"
ARCHITECTURE = (DOCS / "architecture.md").read_text(encoding="utf-8")
LINK = re.compile(r"\]\((?!https?://)([^)\s]+)")
LINK_TEXT = re.compile(r"\[([^\]]*)\]\([^)]*\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
IN_CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?:tasks|remote|bench|reports|tests|image|manifests|docs)/[\w./-]*[\w/]")
ROW = re.compile(r"^\| (?!fault \|)(?!-)", re.MULTILINE)
NAME = re.compile(r"\b[a-z0-9]+(?:_[a-z0-9]+)+\b")
TEXTS = (
    "bench",
    "remote",
    "reports",
    "tasks",
    "image",
    "docs",
    "README.md",
    "invoke.yaml",
    "pyproject.toml",
    "Makefile",
)
SUFFIXES = (".py", ".md", ".yaml", ".toml", ".txt", "")
# Names in quotes or backquotes, and arguments of `python -m`.
MODULE = re.compile(rf"""(?:["'`]|-m )((?:{"|".join(PACKAGES)})(?:\.[A-Za-z_]\w*)+)(?=["'`\s(:,])""")
FILE = re.compile(
    rf"(?<![\w/.])((?:{'|'.join(PACKAGES)}|image|docs|tests)/[\w/.-]*\w\.(?:py|yaml|json|md|svg|png|j2|js))\b"
)


@cache
def anchors(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", LINK_TEXT.sub(r"\1", title).lower()).replace(" ", "-") for title in headings}


def is_target(document: Path, link: str) -> bool:
    """Return whether a link's file exists, with its anchor if it has one."""
    name, _, anchor = link.partition("#")
    path = document.parent / name if name else document
    return path.exists() and (not anchor or path.suffix != ".md" or anchor in anchors(path))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_and_path_that_a_document_names_is_there(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    links = [link for link in LINK.findall(text) if not is_target(document, link)]
    paths = [code for code in IN_CODE.findall(text) if PATH.fullmatch(code) and not (ROOT / code).exists()]
    assert (links, paths) == ([], [])


def test_the_index_lists_every_page() -> None:
    listed = set(LINK.findall((DOCS / "README.md").read_text(encoding="utf-8")))
    assert {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} - {"README.md"} - listed == set()


def test_each_package_names_its_modules_in_its_docstring() -> None:
    """Check each package but the four top ones."""
    missing = {}
    for init in (path for top in PACKAGES for path in (ROOT / top).glob("*/**/__init__.py")):
        text = ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""
        modules = {path.stem for path in init.parent.glob("*.py")} - {"__init__", "__main__"}
        modules |= {path.parent.name for path in init.parent.glob("*/__init__.py")}
        missing[str(init.parent.relative_to(ROOT))] = {name for name in modules if not re.search(rf"\b{name}\b", text)}
    assert {package: names for package, names in missing.items() if names} == {}


def test_the_architecture_has_a_line_for_each_subpackage() -> None:
    packages = [path.parent.relative_to(ROOT) for top in PACKAGES for path in (ROOT / top).glob("*/**/__init__.py")]
    assert [str(package) for package in packages if f"| `{package}` |" not in ARCHITECTURE] == []
    picture = (DOCS / "architecture.svg").read_text(encoding="utf-8")
    direct = [package for package in packages if len(package.parts) == 2]
    assert [str(package) for package in direct if f">{package.name}<" not in picture] == []


def test_a_code_path_names_at_most_ten_files_and_existing_functions() -> None:
    code_paths = ARCHITECTURE.split("## Four code paths")[1].split("\n## ")[0].split("\n**")[1:]
    assert len(code_paths) == 4
    steps = [re.findall(r"^\d+\. `([^`]+)`((?:.|\n   )+)", path, re.MULTILINE) for path in code_paths]
    assert max(len(path) for path in steps) <= 10
    calls = [(file, name) for path in steps for file, text in path for name in re.findall(r"`(\w+)\(\)`", text)]
    assert len(calls) > 20
    assert [
        (file, name) for file, name in calls if f"def {name}(" not in (ROOT / file).read_text(encoding="utf-8")
    ] == []


def test_no_message_of_a_sequence_diagram_has_a_semicolon() -> None:
    """Check for semicolons, at which Mermaid ends a statement."""
    diagrams = re.findall(r"```mermaid\nsequenceDiagram\n(.*?)```", ARCHITECTURE, re.DOTALL)
    assert len(diagrams) == 2
    assert [line for diagram in diagrams for line in diagram.splitlines() if ";" in line] == []


def test_the_picture_of_the_readme_has_the_measured_numbers() -> None:
    rows = step_figure.read_rows((DOCS / "performance.md").read_text(encoding="utf-8"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [row.label for row in rows if f"{row.speed:,.0f}" not in readme] == []
    assert all(row.low < row.speed < row.high for row in rows)


def test_every_test_that_the_table_of_faults_names_is_there() -> None:
    tests = ROOT / "tests"
    modules = {path.stem: path.read_text(encoding="utf-8") for path in tests.rglob("test_*.py")}
    names = re.findall(r"def (test_\w+)", "\n".join(modules.values()))
    rows = [line for line in (tests / "faults" / "README.md").read_text().splitlines() if ROW.match(line)]
    assert len(rows) > 20
    named = [name for row in rows for name in NAME.findall(row)]
    assert [name for name in named if name not in modules and not any(name in test for test in names)] == []
    files = [file for row in rows for file in re.findall(r"tests/[\w/]+", row)]
    assert [file for file in files if not (ROOT / f"{file}.py").is_file()] == []


def is_module(dotted: str) -> bool:
    """Return whether this is a module, a name in one, or a package's data folder."""
    folder = ROOT.joinpath(*dotted.split("."))
    names = []
    while folder != ROOT:
        for path in (folder.with_suffix(".py"), folder / "__init__.py"):
            if path.is_file():
                text = path.read_text(encoding="utf-8")
                return all(re.search(rf"\b{name}\b", text) for name in names)
        names.append(folder.name)
        folder = folder.parent
    return False


def test_every_module_and_file_named_in_text_exists() -> None:
    missing, settings = set(), {".".join(keys) for keys in SETTINGS}
    roots = [ROOT / name for name in TEXTS]
    for path in (path for root in roots for path in (root.rglob("*") if root.is_dir() else [root])):
        if path.suffix in SUFFIXES and path.is_file():
            text = path.read_text(encoding="utf-8")
            names = {name for name in MODULE.findall(text) if not name.endswith(".py")} - settings
            missing |= {f"{path}: {name}" for name in names if not is_module(name)}
            missing |= {f"{path}: {name}" for name in FILE.findall(text) if not (ROOT / name).exists()}
    assert missing == set()
