"""The only package with sockets: one epoll loop, connections, sendfile, back-pressure and deadlines."""
