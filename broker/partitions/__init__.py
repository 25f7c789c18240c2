"""What a partition is beyond its log: which broker leads it, and what its idempotent producers have sent."""
