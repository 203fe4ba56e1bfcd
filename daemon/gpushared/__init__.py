"""The node daemon: a pure core that decides (core.py), and a thin asyncio shell around it (shell.py)."""
