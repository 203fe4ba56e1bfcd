"""The service behind `gpushare cluster serve`: its thread, its HTTP API and its settings."""
