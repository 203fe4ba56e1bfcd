"""Bodies and targets of the HTTP API that no client of ours would send: an error of the caller's, said in one line."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
from daemon_harness import GIB, GPU, InProcess
from fixed_gpus import FixedGpus
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpushared import config as configuration
from gpushared.gpus.inventory import GpuInfo

EXAMPLES = 100 * int(os.environ.get("GPUSHARE_TEST_SECONDS", "1"))

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=40),
    st.sampled_from(["4Gi", "max", "none", "0.5", "1e9", "-1", "", "GPU-", "\0", "\ud800", "x" * 5000]),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)

GOOD = {"name": "fuzz", "command": ["true"], "request": "1Mi", "limit": "1Gi", "gpus": 1, "wait": 0}
FIELDS = [*GOOD, "request_source", "limit_source", "devices", "priority", "grace", "lend", "min_run_time", "job", "cwd"]
job_bodies = st.dictionaries(st.sampled_from(FIELDS), values, max_size=3).map(lambda wrong: GOOD | wrong | {"wait": 0})
changes = st.dictionaries(st.sampled_from(["request", "limit", "priority", "dry_run", "other"]), values, max_size=3)
# A pid that exists would be taken for a job's own, and ended with it.
mains = st.dictionaries(st.sampled_from(["pid", "other"]), values.filter(lambda value: not isinstance(value, int)))
ends = st.dictionaries(st.sampled_from(["exit_code", "signal", "other"]), values, max_size=2)


def encode(value: object) -> bytes:
    return json.dumps(value).encode()


requests = st.one_of(
    st.tuples(st.just("POST"), st.just("/v1/jobs"), job_bodies.map(encode)),
    st.tuples(st.just("POST"), st.just("/v1/jobs"), st.one_of(values.map(encode), st.binary(max_size=60))),
    st.tuples(st.just("PATCH"), st.just("/v1/jobs/fuzz"), st.one_of(changes, values).map(encode)),
    st.tuples(st.just("PUT"), st.just("/v1/jobs/fuzz/main"), mains.map(encode)),
    st.tuples(st.just("DELETE"), st.just("/v1/jobs/fuzz"), ends.map(encode)),
    st.tuples(
        st.sampled_from(["GET", "DELETE", "PATCH", "PUT"]),
        st.text("abz019%/.?&=-_~", min_size=1, max_size=30).map(lambda name: f"/v1/jobs/{name}"),
        st.none(),
    ),
    st.tuples(st.just("POST"), st.just("/v1/jobs"), st.integers(1, 3000).map(lambda depth: b"[" * depth)),
)


@pytest.fixture(scope="module")
def daemon():
    settings = configuration.Config(idle_exit=3600.0, sample_interval=0.5)
    with tempfile.TemporaryDirectory(prefix="gs-") as directory:
        gpus = FixedGpus([GpuInfo(GPU, 0, "Test GPU", 16 * GIB)])
        daemon = InProcess(Path(directory), settings, gpus).start()
        yield daemon
        daemon.validate()
        errors = daemon.shell.core_loop.errors
        daemon.stop()
        assert errors == 0, "the daemon met a bug of its own; its log has it"


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(requests, min_size=1, max_size=6))
def test_the_caller_is_told_and_the_daemon_goes_on(daemon, sequence):
    try:
        for method, target, body in sequence:
            status, answer = daemon.http(method, target, body)
            assert 200 <= status < 500, (status, answer)
            if status >= 400 and answer[:1] == b"{":
                error = json.loads(answer)["error"]
                assert error["code"] and "\n" not in error["message"]
        status, answer = daemon.http("GET", "/v1/status")
        assert status == 200
        assert daemon.shell.core_loop.errors == 0
    finally:
        for job in json.loads(daemon.http("GET", "/v1/jobs")[1])["jobs"]:
            daemon.http("DELETE", f"/v1/jobs/{job['id']}", b"{}")
