"""What `logbus produce` and `logbus consume` are made of: lines to records, records to text, where to begin and where to end."""
