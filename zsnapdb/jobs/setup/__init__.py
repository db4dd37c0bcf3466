"""Sets up a host: finds a server, configures its protection, moves its files and verifies the result.

The package also removes an instance from the configuration.
"""
