"""Which offsets are an hour: boundaries frozen in the ledger, the chain they form, what is missing from it, what was lost."""
