"""The processes with a credit page: the page, the ledger beside it, and the credit in it."""
