"""The collector: log files in, records of a topic out, each line once."""
