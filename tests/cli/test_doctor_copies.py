"""`gpushare doctor` on a machine that has the driver in several files."""

from __future__ import annotations

from gpushare.doctor.driver import driver_files

CACHE = """\
5 libs found in cache `/etc/ld.so.cache'
\tlibcudart.so.12 (libc6,x86-64) => {0}/libcudart.so.12
\tlibcuda.so.1 (libc6,x86-64) => {0}/libcuda.so.1
\tlibcuda.so.1 (libc6) => {0}/i386/libcuda.so.1
\tlibcuda.so (libc6,x86-64) => {0}/libcuda.so
\tlibcuda.so (libc6,x86-64) => {0}/gone/libcuda.so
"""


def test_names_of_one_file_are_one_driver(tmp_path):
    (tmp_path / "libcuda.so.1").write_text("a")
    (tmp_path / "libcudart.so.12").write_text("b")
    (tmp_path / "i386").mkdir()
    (tmp_path / "i386/libcuda.so.1").write_text("c")
    (tmp_path / "libcuda.so").symlink_to("libcuda.so.1")
    assert driver_files(CACHE.format(tmp_path)) == [f"{tmp_path}/libcuda.so.1"]


def test_two_files_are_two(tmp_path):
    for name in ("libcuda.so.1", "libcuda.so"):
        (tmp_path / name).write_text("the same")
    assert driver_files(CACHE.format(tmp_path)) == [f"{tmp_path}/libcuda.so.1", f"{tmp_path}/libcuda.so"]
    assert driver_files("") == []
