"""What a scrape shows: counters and state of the other packages under the names that Kafka dashboards use, as Prometheus text."""
