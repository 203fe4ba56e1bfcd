"""Stands in for the real daemon where `gpushare run` starts `python -m gpushared`: see fake_api.py."""
