"""What we measure ourselves against: real servers, how they get here, and the programs that load them."""
