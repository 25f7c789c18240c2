"""How things are, read from ledger and broker: lag, replay plans, managed retention, the checks of `logbus doctor`."""
