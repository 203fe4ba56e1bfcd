"""Whoever asks by HTTP: who they are, what they may, what they are shown."""
