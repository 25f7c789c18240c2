"""One file for each subcommand of `logbus`; each exposes `command`."""
