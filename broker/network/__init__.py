"""Sockets, and nothing else has them: one selector loop, connections, sendfile, back-pressure and deadlines."""
