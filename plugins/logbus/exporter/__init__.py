"""Metrics of the pipeline side: lag, windows, dead letters, topics and groups as a scraper reads them.

    catalogue          every metric with its kind, labels and meaning: one table that the docs and tests are checked against
    sources            broker, ledger and clock, put together
    kafka_reading      what the broker returns, asked for in batches;  arrivals   when end offsets were first seen
    lag_reading        how far behind each pipeline is
    target_reading     one reading shared by concurrent scrapes, with a deadline and a reason for each failure
    samples            readings -> samples. Pure: an unknown value gives no sample, never NaN
    collector          the three readings, as prometheus_client asks for them;  server   the HTTP port

The three readings fail independently: with the broker down the ledger's metrics are still exported, and `logbus_up` says what
could not be read.
"""
