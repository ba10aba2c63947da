"""The build steps that pyproject.toml cannot express: configurations in the wheel, and a README for a package index."""

import compileall
import os
import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConfigurations(build_py):
    """Copy the package's modules, then the configurations; an editable installation uses those of the repository, whose
    modules it compiles, as pip does with those of a wheel: the first command need not.
    """

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            compileall.compile_dir("bertsecrets", quiet=1)
        else:
            target = Path(self.build_lib, "bertsecrets", "conf")
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree("conf", target)


def readme_for_index(text: str, url: str | None) -> str:
    """The README without relative links, which lead nowhere on a package index; absolute if an address is given."""

    def replaced(match: re.Match[str]) -> str:
        image, label, target = match.groups()
        if url is not None:
            return f"{image}[{label}]({url.rstrip('/')}/{target})"
        return "" if image else label

    return re.sub(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)", replaced, text)


def urls_for_index(url: str | None) -> dict[str, str]:
    """The links beside a package index's description."""
    pages = {"Source": "", "Documentation": "docs/index.md", "Changelog": "CHANGELOG.md"}
    return {} if url is None else {name: f"{url.rstrip('/')}/{page}".rstrip("/") for name, page in pages.items()}


# The address of the repository's files is given when a release is built, so that forks link to their own.
_URL = os.environ.get("BERTSECRETS_URL")

setup(
    cmdclass={"build_py": BuildWithConfigurations},
    long_description=readme_for_index(Path("README.md").read_text("utf-8"), _URL),
    long_description_content_type="text/markdown",
    project_urls=urls_for_index(_URL),
)
