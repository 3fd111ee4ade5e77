"""`python -m ssh_gateway`: run the gateway, or with `--init` make its keys."""

from ssh_gateway.app import main

main()
