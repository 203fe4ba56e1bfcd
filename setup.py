"""Only what pyproject.toml cannot say: the C parts are built by shim/build_shim.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "shim"))

import prerequisites

problem = prerequisites.missing(sys.argv[1:])
if problem is not None:
    sys.exit(problem)

from setuptools import setup  # noqa: E402

from build_shim import BuildShim, extensions  # noqa: E402

setup(ext_modules=extensions(), cmdclass={"build_ext": BuildShim})
