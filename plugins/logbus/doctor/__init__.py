"""What `logbus doctor` looks at outside the ledger: Java, Spark, Airflow, versions, the broker, clocks, disks, jars.

Each check is a function of `Surroundings` that gives findings, what is well included, and says how to mend what is not. None
changes anything. They run beside each other (`looking.py`), each with a deadline, because some start a JVM and some talk to
what may be dead.
"""
