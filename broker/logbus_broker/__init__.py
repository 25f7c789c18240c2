"""The log: a message broker after "Kafka: a Distributed Messaging System for Log Processing" (2011) that speaks Kafka's wire
protocol, alone or in a cluster.
"""
