"""Copy the studies and the tables of their results into a wheel; everything else is in pyproject.toml."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = ("studies/**/*.toml", "results/**/result.json", "results/**/report.md")


class BuildWithStudies(build_py):
    """``holdfast.files.shipped_folder`` finds the copies; an editable install reads the folders of the clone."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for path in (path for pattern in SHIPPED for path in Path().glob(pattern)):
            target = Path(self.build_lib, "holdfast", "_shipped", path)
            target.parent.mkdir(parents=True, exist_ok=True)
            self.copy_file(str(path), str(target))


setup(cmdclass={"build_py": BuildWithStudies})
