"""`python -m broker`."""

from broker.cli import main

main()
