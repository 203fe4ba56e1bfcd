"""The folder by which programs find the software driver."""

from __future__ import annotations

from pathlib import Path

from gpushare.spawn import DRIVER_LINKS, make_driver_links


def links(directory: Path) -> dict[str, str]:
    return {path.name: str(path.readlink()) for path in directory.iterdir()}


def test_links_of_an_earlier_installation_lead_to_this_one_again(tmp_path: Path) -> None:
    folder, earlier, now = tmp_path / "drivers", tmp_path / "earlier", tmp_path / "now"
    make_driver_links(folder, earlier)
    (folder / "libcuda.so").unlink()
    (folder / "libcuda.so").write_text("not a link")
    make_driver_links(folder, now)
    assert links(folder) == {name: str(now / target) for name, target in DRIVER_LINKS.items()}


def test_links_that_are_right_are_left_alone(tmp_path: Path) -> None:
    """Programs use them meanwhile."""
    folder = tmp_path / "drivers"
    make_driver_links(folder, tmp_path)
    before = {path.name: path.lstat().st_ino for path in folder.iterdir()}
    make_driver_links(folder, tmp_path)
    assert {path.name: path.lstat().st_ino for path in folder.iterdir()} == before
