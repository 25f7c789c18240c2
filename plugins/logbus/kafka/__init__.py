"""Everything that talks to a broker: one client with one table of errors, and what it is used for."""
