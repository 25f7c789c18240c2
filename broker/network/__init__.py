"""Sockets, and nothing else has them: one epoll loop, connections, sendfile, back-pressure and deadlines."""
