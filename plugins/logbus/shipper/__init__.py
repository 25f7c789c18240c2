"""The shipper: sends log files to a topic, each line exactly once."""
