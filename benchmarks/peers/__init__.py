"""What we compare ourselves with: real servers, how they are fetched, and the programs that load them."""
