"""The page that is committed is the one that web/ makes, and it is small."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WEB = ROOT / "web"
STATIC = ROOT / "gpushare" / "dashboard" / "static"
MOST = 200 * 1024
"""Bytes, compressed, of all that a browser loads."""


def test_the_page_is_small() -> None:
    loaded = [path for path in STATIC.iterdir() if path.suffix in (".html", ".js", ".css", ".svg")]
    assert len(loaded) == 4
    assert sum(len(gzip.compress(path.read_bytes())) for path in loaded) < MOST


def test_each_package_in_the_page_has_its_licence() -> None:
    licences = (STATIC / "LICENSES.txt").read_text()
    for name, version in json.loads((WEB / "package.json").read_text())["dependencies"].items():
        assert f"{name} {version}\n" in licences
    assert licences.count("Permission is hereby granted") == 2


@pytest.mark.skipif(shutil.which("node") is None, reason="no node here: the page is not built again")
def test_the_page_is_built_from_these_sources(tmp_path: Path) -> None:
    if not (WEB / "node_modules" / "esbuild").is_dir():
        pytest.skip("web/node_modules is not there: `make web` or `make test-browser` brings it")
    wanted = json.loads((WEB / "package-lock.json").read_text())["packages"]
    for name in ("node_modules/esbuild", "node_modules/preact", "node_modules/uplot"):
        have = json.loads((WEB / name / "package.json").read_text())["version"]
        assert have == wanted[name]["version"], f"{name} is {have}: run `make web`"
    subprocess.run(["node", str(WEB / "build.mjs"), str(tmp_path)], check=True, timeout=60)
    built = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    committed = {path.name: path.read_bytes() for path in STATIC.iterdir()}
    assert built.keys() == committed.keys()
    for name, text in built.items():
        assert text == committed[name], f"{name} differs: run `make web` and commit what it makes"
