"""`python -m logbus_broker`."""

from logbus_broker.cli import main

main()
