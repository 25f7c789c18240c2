"""The collector: sends log files to a topic, each line exactly once."""
