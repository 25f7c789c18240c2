"""Who a client is and what it may do, as values and decisions: credentials, principals, ACLs, quotas."""
