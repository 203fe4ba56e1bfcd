"""Whoever asks by HTTP, and what they are shown."""
