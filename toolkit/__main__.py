"""`python -m toolkit` is the command `toolkit`."""

from toolkit.cli import main

main()
