"""Only what pyproject.toml cannot say: the C parts are built by shim/build_shim.py."""

import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).resolve().parent / "shim"))

from build_shim import BuildShim, extensions

setup(ext_modules=extensions(), cmdclass={"build_ext": BuildShim})
