"""Programs under gpushare: their connection, their credit page, their processes."""
