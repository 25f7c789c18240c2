"""What a deferred sensor waits for in the triggerer."""
