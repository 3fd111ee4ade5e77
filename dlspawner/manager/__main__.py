"""`python -m dlspawner.manager`."""

from dlspawner.manager.app import main

if __name__ == "__main__":
    main()
