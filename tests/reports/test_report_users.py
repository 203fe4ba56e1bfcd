"""What a report says of another user's job is what `reveal` allows: two Unix users and a real daemon."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboard.conftest import Subprocess  # it also makes the next module importable
from reports.recorded import wait_for_history

from other_user import ALICE, as_user, needs_root  # isort: skip
from gpushare.report import contents, page, table

pytestmark = needs_root

SECRET = "thesis-of-bob"
COMMAND = "/home/bob/secret.py"


@pytest.fixture
def node() -> Iterator[Subprocess]:
    """A daemon that others may ask, on the software driver."""
    with tempfile.TemporaryDirectory(prefix="gs-") as made:
        one = Subprocess(Path(made), {"GPUSHARE_SIM": f"gpus=1,memory=16Gi,pool={made}/pool"}, fixed=False)
        try:
            yield one
        finally:
            one.kill()


def all_of(node: Subprocess, id: str) -> dict[str, str]:
    """What the caller can read in reports."""
    client, now = node.client, time.time()
    asked = contents.Asked(now - 60, now, None, now)
    whole = contents.of_node(client, asked)
    of_job = contents.of_job(client, client.find_job(id), asked)
    return {
        "page": page.render(whole),
        "job's page": page.render(of_job),
        "table": table.render(whole),
        "job's table": table.render(of_job),
        "story": json.dumps(of_job["happenings"]),
    }


@pytest.mark.parametrize("reveal", ["name", "none"])
def test_a_report_has_what_reveal_allows(node: Subprocess, reveal: str) -> None:
    settings = node.directory / "settings.toml"
    settings.write_text(f'[daemon]\nreveal = "{reveal}"\n')
    node.start("--config", str(settings))
    body = {"name": SECRET, "command": [COMMAND], "request": "4Gi", "limit": "14Gi", "devices": ["0"]}
    job = node.client.register(body)["id"]
    wait_for_history(node.client, job)
    node.directory.chmod(0o711)
    (node.directory / "api.sock").chmod(0o666)
    mine, found = all_of(node, job), as_user(ALICE, lambda: all_of(node, job))
    for name in ("page", "job's page", "table", "job's table"):
        assert SECRET in mine[name]
        assert (SECRET in found[name]) is (reveal == "name"), name
        assert COMMAND not in found[name]
        assert job in found[name], "amounts are for everybody"
    assert COMMAND in mine["page"] and "admitted" in mine["story"]
    assert found["story"] == "[]"
