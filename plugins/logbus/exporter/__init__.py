"""Metrics of the pipeline side: lag, windows, dead letters, topics and groups as a scraper reads them.

    catalogue          every metric with its kind, labels and meaning: one table, from which docs and tests are made
    sources            whom to ask, put together
    kafka_reading      what the broker says, asked in batches;  arrivals   since when offsets are there
    lag_reading   how far pipelines are behind
    shared             one reading for all who scrape at once, with a deadline, each failure with its reason
    samples            readings -> samples. Pure: what nobody knows is no sample, never NaN
    collector          the three readings as prometheus_client asks for them;  server   the HTTP port

The three readings fail one by one: with the broker down the ledger's part is still told, and `logbus_up` says what is not.
"""
