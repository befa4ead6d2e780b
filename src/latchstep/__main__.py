"""`python -m latchstep` is the `latchstep` command."""

from latchstep.cli.main import main

main()
