"""Why a job waits, and the smallest change that would start it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpushare.cluster.model import Explanation
from gpushare.cluster.state import JobState

if TYPE_CHECKING:
    from gpushare.cluster.allocator import Allocator


def explain(allocator: Allocator, job: JobState) -> Explanation:
    from gpushare.cluster import views

    view = views.job(job)
    return Explanation(job.job.id, view.state, view.reason)
