"""What we measure ourselves against: real Apache Kafka and its command-line tools."""
