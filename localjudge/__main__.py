"""`python -m localjudge`: the command line without its script."""

from localjudge.cli import main

if __name__ == "__main__":
    main()
