"""The node daemon: a pure core that decides (core/), and a thin asyncio shell around it (runtime/shell.py)."""
