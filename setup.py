"""The build step that pyproject.toml cannot express: the wheel carries the folder conf as bertsecrets/conf."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConfigurations(build_py):
    """Copy the package's modules, then the configurations; an editable installation uses those of the repository."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib, "bertsecrets", "conf")
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree("conf", target)


setup(cmdclass={"build_py": BuildWithConfigurations})
