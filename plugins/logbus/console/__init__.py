"""The parts of `logbus produce` and `logbus consume`: lines to records, records to text, where to begin and where to end."""
