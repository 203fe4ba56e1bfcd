"""Programs under gpushare as the daemon holds them: their credit page, what it was given, their processes."""
