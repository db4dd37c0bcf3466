"""Entry point of `python -m zsnapdb`: the command line."""

from zsnapdb.cli.app import main

if __name__ == "__main__":
    main()
