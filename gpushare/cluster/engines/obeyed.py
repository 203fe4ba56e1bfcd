"""The newest command that an engine has obeyed for each task: by its token a late or doubled command is known."""

from __future__ import annotations

from gpushare.cluster.engines.seam import Deposed, Token

__all__ = ["Obeyed"]

NEVER: Token = (0, 0)


class Obeyed:
    """Tasks are named by job, group and number: a token holds for all attempts."""

    def __init__(self) -> None:
        self._tokens: dict[str, dict[tuple[int, int], Token]] = {}
        self.term = 0
        """The newest that is known."""

    def check_term(self, token: Token) -> None:
        """Raises Deposed for a service that no longer leads."""
        if token[0] < self.term:
            raise Deposed(f"term {token[0]} is over")
        self.term = token[0]

    def is_news(self, job: str, group: int, task: int, token: Token) -> bool:
        """Neither this command nor a later one was obeyed for this task."""
        return token > self._tokens.get(job, {}).get((group, task), NEVER)

    def note(self, job: str, group: int, task: int, token: Token) -> None:
        known = self._tokens.setdefault(job, {})
        known[group, task] = max(token, known.get((group, task), NEVER))
        self.term = max(self.term, token[0])

    def forget(self, job: str) -> None:
        self._tokens.pop(job, None)
