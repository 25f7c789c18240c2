"""What a scrape shows: counters and state of the other rooms under the names that Kafka dashboards use, as Prometheus text."""
