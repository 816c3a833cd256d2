"""Build of the wheel. Everything else about the package is in pyproject.toml.

The packages have short names (bench, remote, reports, tasks). In site-packages they would replace the files of another
distribution with such a name. A wheel therefore has one folder, qlora_fleet, with the layout of the repository, and
qlora_fleet.pth, which appends that folder to sys.path: packages of other distributions come first.
"""

from pathlib import Path
from shutil import copytree, ignore_patterns

from setuptools import setup
from setuptools.command.build_py import build_py

NAME = "qlora_fleet"
ROOT = Path(__file__).resolve().parent
FOLDERS, FILES = ("image", "manifests"), ("invoke.yaml", "tasks.py")  # read by the commands


class BuildBelowOneFolder(build_py):
    """Build of the packages, and of the files that the commands read, into the folder of the wheel."""

    def run(self) -> None:
        if self.editable_mode:
            super().run()
            return
        site = Path(self.build_lib)
        self.build_lib = str(site / NAME)
        super().run()
        for folder in FOLDERS:
            copytree(ROOT / folder, site / NAME / folder, ignore=ignore_patterns("__pycache__"), dirs_exist_ok=True)
        for file in FILES:
            self.copy_file(str(ROOT / file), str(site / NAME / file))
        (site / f"{NAME}.pth").write_text(f"{NAME}\n", encoding="ascii")


setup(cmdclass={"build_py": BuildBelowOneFolder})
