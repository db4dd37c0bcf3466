"""Runs the command line for `python -m zsnapdb`."""

from zsnapdb.cli.app import main

if __name__ == "__main__":
    main()
