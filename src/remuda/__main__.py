"""`python -m remuda` is `remuda`."""

from remuda.cli import main

if __name__ == "__main__":
    main()
