"""The command line of gpushared.

It uses argparse, and imports the daemon only after the options are known: several wrappers may start a daemon at once,
and all but one of these processes only have to find out that they are not needed.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpushare.errors import GpushareError, UsageError
from gpushare.paths import SYSTEM_DIR, SYSTEM_HISTORY, Runtime, history_dir, user_dir
from gpushared.system import logs
from gpushared.system.runtime_dir import RuntimeDir


def main(arguments: Sequence[str] | None = None) -> int:
    _without_preload()
    options = parser().parse_args(arguments)
    try:
        logs.set_up(options.log_level, options.log_format)
        return _run(options)
    except ModuleNotFoundError as error:
        problem = GpushareError(
            f"the Python module {error.name} is not installed for {sys.executable}",
            hint="the installation of gpushare is not whole: install it again",
        )
        print(problem.render().replace("gpushare: ", "gpushared: ", 1), file=sys.stderr)
        return problem.exit_code
    except GpushareError as error:
        print(error.render().replace("gpushare: ", "gpushared: ", 1), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # who reads --check-config has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # otherwise Python reports an error at exit
        return 1


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="gpushared",
        description="The node daemon of gpushare: shares the memory of this node's GPUs between programs.",
    )
    scope = made.add_mutually_exclusive_group()
    scope.add_argument("--user", action="store_true", help="for this user alone; ends after the last job (default)")
    scope.add_argument("--system", action="store_true", help="for all users; as a service, under systemd")
    made.add_argument("--dir", type=Path, help="where its sockets, pages and notes lie")
    made.add_argument(
        "--history", type=Path, metavar="DIR", help="where it writes down what happens, for after its end"
    )
    made.add_argument("--driver", choices=("auto", "nvidia", "sim"), help="NVIDIA's driver or the software driver")
    made.add_argument("--config", type=Path, metavar="FILE", help="default: /etc/gpushare/gpushared.toml")
    made.add_argument("--check-config", action="store_true", help="print the settings in force, and where from")
    logs.add_options(made)
    return made


def _run(options: argparse.Namespace) -> int:
    from gpushared import config

    loaded = config.load(options.config)
    if options.check_config:
        from gpushared.config_check import doubts

        print(loaded.describe(), flush=True)
        cautions = config.cautions(loaded.config) if options.system or loaded.path is not None else []
        for caution in [*cautions, *doubts(loaded.config)]:
            print(f"gpushared: {caution}", file=sys.stderr)
        return 0
    choice = options.driver or os.environ.get("GPUSHARE_DRIVER") or "auto"
    if choice not in ("auto", "nvidia", "sim"):
        raise UsageError(f"GPUSHARE_DRIVER={choice} is none of auto, nvidia and sim", code="bad_driver")
    choice = _choose_driver(choice)
    os.umask(0o077)  # not the starter's: files are private, and those for others get their mode explicitly
    directory = RuntimeDir(_directory(options, choice), system=options.system)
    directory.take()
    settings = None if options.config is None else options.config.absolute()
    history = _history(options, choice, os.environ)
    os.chdir("/")  # the daemon outlives its starter, whose file system may be unmounted
    with _only_what_is_needed():
        import asyncio

        import gpushared.daemon  # noqa: F401  (for _serve: by then it is there)

    try:
        asyncio.run(_serve(directory, choice, loaded, settings, history))
    finally:
        directory.release()
    return 0


@contextlib.contextmanager
def _only_what_is_needed() -> Iterator[None]:
    """Makes the imports inside cheaper: the first `gpushare run` of a user waits for them.

    aiohttp's client prepares for TLS when it is imported, and reads all certificates for that. The daemon serves a Unix
    socket and connects to nothing. asyncio and aiohttp both work if Python has no `ssl`. The garbage collector would
    visit every object of every module during the imports; Daemon.run switches it on.
    """
    gc.disable()
    if "ssl" in sys.modules:
        yield
        return
    sys.modules["ssl"] = None  # type: ignore[assignment]  # the import system's sign for "there is none"
    yield
    # Later imports, for a request such as that for metrics, need `ssl`, and these two modules with their parts for TLS.
    for name in ("ssl", "http.client", "urllib.request"):
        sys.modules.pop(name, None)


def _directory(options: argparse.Namespace, driver: str) -> Path:
    if options.dir is not None:
        return Path(options.dir).absolute()
    return SYSTEM_DIR if options.system else user_dir(driver, os.environ)


def _history(options: argparse.Namespace, driver: str, environ: Mapping[str, str]) -> Path | None:
    if options.history is not None:
        return Path(options.history).absolute()
    if options.dir is not None:
        return Runtime(options.dir.absolute()).history
    if options.system:
        state = environ.get("STATE_DIRECTORY", "").split(":")[0]  # systemd's
        return Path(state) / "history" if state else SYSTEM_HISTORY
    return history_dir(driver, environ)


async def _serve(directory: RuntimeDir, driver: str, loaded: object, path: Path | None, history: Path | None) -> None:
    from gpushared import config
    from gpushared.daemon import Daemon
    from gpushared.gpus.nvml import Nvml
    from gpushared.system.systemd import Notifier

    assert isinstance(loaded, config.Loaded)
    daemon = Daemon(directory, Nvml(driver), loaded, Notifier(), lambda: config.load(path), history=history)
    await daemon.run()


def _choose_driver(choice: str) -> str:
    if choice != "auto":
        return choice
    from gpushare.locate import detect_driver

    return detect_driver()


def _without_preload() -> None:
    """The daemon must see the real GPUs, not the sizes that the library shows to a job that has started it."""
    libraries = os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    others = [library for library in libraries if Path(library).name != "libgpushare.so"]
    if len(others) != len(libraries):
        os.environ["LD_PRELOAD"] = ":".join(others)
        os.execv(sys.executable, [sys.executable, "-m", "gpushared", *sys.argv[1:]])
