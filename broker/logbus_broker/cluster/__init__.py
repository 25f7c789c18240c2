"""Which topics exist, and in a cluster which brokers are live and which of them leads what."""
