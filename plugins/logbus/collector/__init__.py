"""The collector: log files in, records of a topic out, each line once."""

import logging

logging.getLogger("logbus.collector").addHandler(logging.NullHandler())  # the Kafka client's own messages: for who asks for them
