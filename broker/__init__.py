"""The log: a single-node message broker after "Kafka: a Distributed Messaging System for Log Processing" (2011), on Kafka's
wire protocol.
"""
