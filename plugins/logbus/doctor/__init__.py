"""What `logbus doctor` looks at outside the ledger: Java, Spark, Airflow, versions, the broker, clocks, disks, jars.

Each check is a function of `Surroundings` that yields findings, good ones included, and says how to fix the bad ones. None
changes anything. They run in parallel (`looking.py`), each with a deadline, because some start a JVM and some talk to services
that may be down. A check that does not end in time is a warning: slow is not wrong.
"""
