"""A GPU has one number in all messages: the node's, whatever CUDA counts in the program."""

from __future__ import annotations

import re

from integration.node import GIB, Node, wait_for


def test_the_preload_library_and_the_daemon_name_the_same_gpu(two_gpus: Node) -> None:
    node = two_gpus
    borrower = node.puppet("train", "--gpu", "1", "--request", "2Gi", "--limit", "14Gi", "--grace", "10s")
    borrower.do("term ignore")
    borrower.alloc(11 * GIB)
    # CUDA_VISIBLE_DEVICES is set: the program's only GPU is CUDA's device 0.
    owner = node.puppet("serve", "--request", "8Gi", CUDA_VISIBLE_DEVICES="1")
    owner.send(f"alloc {7 * GIB}")
    wait_for(lambda: node.job("train")["state"] == "asked_back", "train to be asked")
    assert "for 7.0 GiB of GPU 1, which is within its request" in node.gpushare("explain").stdout
    assert owner.answer()[0] == "ok", "after the grace"
    assert owner.try_(f"alloc {2 * GIB}")[0] != "ok"
    assert owner.end() == 0
    said = re.findall("^gpushare: (waiting for|cannot allocate) .* on (.*?): ", owner.errors(), re.MULTILINE)
    assert said == [("waiting for", "GPU 1"), ("cannot allocate", "GPU 1")]
