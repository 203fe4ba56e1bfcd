"""`gpushare-webhook`: annotations of pods become claims."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpushare.interval import Interval
from gpushare.kubernetes.program import needs_extra, run
from gpushare.kubernetes.webhook.limits import INTERACTIVE, NONE, OPTIONS, Rules, read

if TYPE_CHECKING:
    from gpushare.kubernetes.webhook.serve import Webhook

__all__ = ["main"]

FILE = click.Path(path_type=Path)
EVERY = Interval(0.05, 3600)
PART = "A part of a GPU, as in 0.5."


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--address", default="127.0.0.1", help="Where it listens.")
@click.option("--port", type=click.IntRange(0, 65535), default=8443, help="0: any.")
@click.option("--kubeconfig", type=FILE, help="Without it: the service account of its pod.")
@click.option("--namespace", default="gpushare", help="Of its Service and its Secret.")
@click.option("--service", default="gpushare-webhook", help="By which the API server finds it.")
@click.option("--secret", default="gpushare-webhook", help="It has the certificate.")
@click.option("--configuration", default="gpushare-webhook", help="The MutatingWebhookConfiguration.")
@click.option("--name", "names", multiple=True, help="A further DNS name of the certificate.")
@click.option("--every", type=EVERY, default=10.0, help="Seconds between two looks at the certificate.")
@click.option("--default-limit", help=f"The limit of pods that say none. {PART}")
@click.option("--interactive-limit", help=f"The same, for interactive pods. {PART}")
@click.option("--max-limit", help=f"No pod's limit is more. {PART}")
@click.option("--interactive", multiple=True, default=INTERACTIVE, help="A priority class of interactive pods.")
def command(
    address: str, port: int, kubeconfig: Path | None, every: float, names: tuple[str, ...], **said: Any
) -> None:
    """Pods with the annotations gpu-fraction, gpu-memory and the like get a claim of gpushare.dev.

    The API server asks it as a MutatingWebhookConfiguration says: deploy/kubernetes/webhook.
    """
    limits = read({name: said[option] for name, option in OPTIONS.items()}, NONE.whose, "option for ")
    rules = Rules(limits, said["interactive"])
    own = f"{said['service']}.{said['namespace']}.svc"
    with started(kubeconfig, said, (own, *names), rules) as webhook:
        asyncio.run(until_told(webhook, address, port, every))


def main() -> None:
    run(command)


@contextlib.contextmanager
def started(kubeconfig: Path | None, said: Mapping[str, str], names: Sequence[str], rules: Rules) -> Iterator[Webhook]:
    """Raises UsageError."""
    with needs_extra():
        from gpushare.kubernetes.server import Access, Server
        from gpushare.kubernetes.webhook.keeper import Keeper, Place
        from gpushare.kubernetes.webhook.makers import Templates
        from gpushare.kubernetes.webhook.serve import Known, Webhook
    access = Access.of_kubeconfig(kubeconfig) if kubeconfig else Access.of_pod()
    server = Server(access, agent="gpushare-webhook", connections=12)
    known = Known(server)
    try:
        keeper = Keeper(server, Place(said["namespace"], said["secret"], said["configuration"]), names)
        yield Webhook(keeper, known, Templates(server), rules)
    finally:
        known.close()


async def until_told(webhook: Webhook, address: str, port: int, every: float) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await webhook.run(address, port, every, ended)


if __name__ == "__main__":
    main()
