"""What a partition is beyond its log: who leads it, and what its idempotent producers have sent."""
