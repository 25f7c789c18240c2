"""`python -m broker`."""

from broker.cli import main

main(prog_name="python -m broker")
